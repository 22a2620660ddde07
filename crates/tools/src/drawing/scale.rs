//! Axes and units. Units are chosen to keep numbers short. Ticks are at 1, 2 or 5 times a power of ten, or on
//! logarithmic axes at the powers of ten. File sizes are shown as powers of two.

/// A unit of a quantity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Unit {
    /// The name, as written after a number.
    pub(crate) name: &'static str,
    /// The size of the unit, as a multiple of the quantity's base unit.
    pub(crate) size: f64,
}

/// The units of a quantity. Each unit is larger than the previous unit by the same factor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnitScale {
    /// The names, smallest unit first.
    names: &'static [&'static str],
    /// The size of the smallest unit, as a multiple of the quantity's base unit.
    least: f64,
    factor: f64,
}

impl UnitScale {
    /// Returns the largest unit that is at most `most`, or the smallest unit if all units are larger.
    pub(crate) fn fitting(self, most: f64) -> Unit {
        let mut unit = Unit {
            name: self.names[0],
            size: self.least,
        };
        for name in &self.names[1..] {
            let size = unit.size * self.factor;
            if most < size {
                break;
            }
            unit = Unit { name, size };
        }
        unit
    }
}

/// Units of bytes.
pub(crate) const BYTES: UnitScale = UnitScale {
    names: &["B", "KiB", "MiB", "GiB", "TiB"],
    least: 1.0,
    factor: 1_024.0,
};

/// Units of bit rates. Their sizes are in bytes per second.
pub(crate) const RATES: UnitScale = UnitScale {
    names: &["bit/s", "kbit/s", "Mbit/s", "Gbit/s"],
    least: 0.125,
    factor: 1_000.0,
};

/// Units of time.
pub(crate) const TIMES: UnitScale = UnitScale {
    names: &["s", "min", "h"],
    least: 1.0,
    factor: 60.0,
};

/// A linear axis that starts at zero.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// The value at the upper end of the axis.
    pub most: f64,
    /// The values with a grid line and a label.
    pub ticks: Vec<f64>,
    decimals: usize,
}

impl Axis {
    /// Returns an axis that ends at the first tick at or above `most`. The axis has at most `ticks_max` steps.
    pub fn to_tick(most: f64, ticks_max: u32) -> Self {
        let most = if most > 0.0 { most } else { 1.0 };
        let axis = Self::to_value(most, ticks_max);
        let step = axis.ticks[1];
        let steps = (most / step - 1e-9).ceil().max(1.0);
        Self {
            most: steps * step,
            ticks: ticks(step, steps),
            ..axis
        }
    }

    /// Returns an axis that ends exactly at `most` and has at most `ticks_max` steps.
    pub fn to_value(most: f64, ticks_max: u32) -> Self {
        let most = if most > 0.0 { most } else { 1.0 };
        let rough = most / f64::from(ticks_max);
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .map(|times| times * power)
            .into_iter()
            .find(|step| *step >= rough * 0.999_999);
        let step = step.unwrap_or(10.0 * power);
        Self {
            most,
            ticks: ticks(step, (most / step + 1e-9).floor()),
            decimals: decimals(step),
        }
    }

    /// Returns the label of a tick.
    pub fn label(&self, tick: f64) -> String {
        format!("{tick:.*}", self.decimals)
    }
}

/// A logarithmic axis whose ends are powers of ten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogAxis {
    /// The exponents at both ends.
    least: i32,
    most: i32,
}

impl LogAxis {
    /// Returns the shortest axis that contains all values. Values that are not positive are ignored.
    pub fn around(values: impl Iterator<Item = f64>) -> Self {
        let logs = values.filter(|value| *value > 0.0).map(f64::log10);
        let ends = logs.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), log| {
            (least.min(log), most.max(log))
        });
        let (least, most) = if ends.0 <= ends.1 { ends } else { (0.0, 1.0) };
        let least = exponent(least.floor());
        Self {
            least,
            most: exponent(most.ceil()).max(least + 1),
        }
    }

    /// Returns the position of a value on the axis, from 0 at the start to 1 at the end.
    pub fn place(self, value: f64) -> f64 {
        (value.log10() - f64::from(self.least)) / f64::from(self.most - self.least)
    }

    /// Returns the values with a grid line and a label.
    pub fn ticks(self) -> impl Iterator<Item = f64> {
        (self.least..=self.most).map(|power| 10f64.powi(power))
    }

    /// Returns the label of a tick.
    pub fn label(tick: f64) -> String {
        match tick {
            _ if tick >= 999_999.0 => format!("{:.0}M", tick / 1e6),
            _ if tick >= 9_999.0 => format!("{:.0}k", tick / 1e3),
            _ if tick >= 0.999 => format!("{tick:.0}"),
            _ => format!("{tick:.*}", decimals(tick)),
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "of a number that somebody has measured"
)]
fn exponent(log: f64) -> i32 {
    log.clamp(-9.0, 18.0) as i32
}

/// Formats a size: exactly if it is a power of two, otherwise like [`ByteCount`](zmove_types::ByteCount).
pub fn size_label(bytes: u64) -> String {
    match bytes.checked_ilog2() {
        Some(power) if bytes.is_power_of_two() => power_label(power),
        _ => zmove_types::ByteCount(bytes).to_string(),
    }
}

/// Formats two to the power of `power` as a size with its unit.
pub(crate) fn power_label(power: u32) -> String {
    let unit = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"][(power / 10).min(6) as usize];
    format!("{} {unit}", 1_u64 << (power - (power / 10).min(6) * 10))
}

/// Returns how many exponents of two must lie between two labels, if one exponent is `width` wide.
pub(crate) fn powers_apart(width: f64) -> u32 {
    [1, 2, 5]
        .into_iter()
        .find(|step| f64::from(*step) * width >= LABEL_WIDTH)
        .unwrap_or(10)
}

/// The width of the longest label of a size.
const LABEL_WIDTH: f64 = 52.0;

/// Returns the multiples of `step` from zero, at least two.
fn ticks(step: f64, steps: f64) -> Vec<f64> {
    let mut ticks = vec![0.0, step];
    while ticks[ticks.len() - 1] < steps * step * 0.999_999 {
        ticks.push(ticks[ticks.len() - 1] + step);
    }
    ticks
}

/// Returns the number of decimals that distinguish one step from the next.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a few, and not below zero"
)]
fn decimals(step: f64) -> usize {
    (-step.log10() - 1e-9).ceil().clamp(0.0, 9.0) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> Vec<String> {
        axis.ticks.iter().map(|tick| axis.label(*tick)).collect()
    }

    #[test]
    fn an_axis_ends_at_or_above_what_it_shows() {
        let axis = Axis::to_tick(4.45, 4);
        assert_eq!(
            (labels(&axis), axis.most),
            (vec!["0".into(), "2".into(), "4".into(), "6".into()], 6.0)
        );
        assert_eq!(
            labels(&Axis::to_tick(0.35, 4)),
            ["0.0", "0.1", "0.2", "0.3", "0.4"]
        );
        assert_eq!(labels(&Axis::to_tick(256.0, 4)), ["0", "100", "200", "300"]);
        assert_eq!(labels(&Axis::to_tick(1.0, 2)), ["0.0", "0.5", "1.0"]);
    }

    #[test]
    fn nothing_has_an_axis_too() {
        assert_eq!(Axis::to_tick(0.0, 4).most, 1.0);
    }

    #[test]
    fn time_ends_where_the_trace_does() {
        let axis = Axis::to_value(3.86, 6);
        assert_eq!(
            (labels(&axis), axis.most),
            (vec!["0".into(), "1".into(), "2".into(), "3".into()], 3.86)
        );
    }

    #[test]
    fn powers_of_ten_lie_at_equal_distances() {
        let axis = LogAxis::around([0.0, 3.0, 250.0].into_iter());
        assert_eq!(
            axis.ticks().map(LogAxis::label).collect::<Vec<_>>(),
            ["1", "10", "100", "1000"]
        );
        assert!((axis.place(10.0) - 1.0 / 3.0).abs() < 1e-9);
        assert_eq!(LogAxis::around([1.0].into_iter()).ticks().count(), 2);
        assert_eq!(LogAxis::around(std::iter::empty()).ticks().count(), 2);
        assert_eq!([0.01, 1e4, 1e6].map(LogAxis::label), ["0.01", "10k", "1M"]);
    }

    #[test]
    fn sizes_are_named_by_their_power() {
        assert_eq!(
            [0, 9, 10, 35, 63].map(power_label),
            ["1 B", "512 B", "1 KiB", "32 GiB", "8 EiB"]
        );
        assert_eq!(
            [1 << 20, 0, 1500].map(size_label),
            ["1 MiB", "0 B", "1.46 KiB"]
        );
        assert_eq!([60.0, 26.0, 11.0, 6.0].map(powers_apart), [1, 2, 5, 10]);
    }

    #[test]
    fn units_keep_numbers_short() {
        assert_eq!(BYTES.fitting(2.5e9).name, "GiB");
        assert_eq!(BYTES.fitting(0.0).name, "B");
        assert_eq!(RATES.fitting(125e6).name, "Gbit/s");
        assert_eq!(RATES.fitting(124e6).name, "Mbit/s");
    }
}
