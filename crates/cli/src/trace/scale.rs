//! Axes: units that keep numbers short, and ticks at 1, 2 or 5 times a power of ten.

/// A unit and how many of the smallest one it has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Unit {
    pub(super) name: &'static str,
    pub(super) size: f64,
}

/// The largest unit of which `most` has one; the first if there is none.
pub(super) fn unit(units: &[Unit], most: f64) -> Unit {
    units.iter().rev().find(|unit| most >= unit.size).copied().unwrap_or(units[0])
}

/// Units of bytes.
pub(super) const BYTES: [Unit; 5] = [
    Unit { name: "B", size: 1.0 },
    Unit { name: "KiB", size: 1_024.0 },
    Unit { name: "MiB", size: 1_048_576.0 },
    Unit { name: "GiB", size: 1_073_741_824.0 },
    Unit { name: "TiB", size: 1_099_511_627_776.0 },
];

/// Units of bits per second, as so many bytes per second.
pub(super) const RATES: [Unit; 4] = [
    Unit { name: "bit/s", size: 0.125 },
    Unit { name: "kbit/s", size: 125.0 },
    Unit { name: "Mbit/s", size: 125e3 },
    Unit { name: "Gbit/s", size: 125e6 },
];

/// Units of time.
pub(super) const TIMES: [Unit; 3] =
    [Unit { name: "s", size: 1.0 }, Unit { name: "min", size: 60.0 }, Unit { name: "h", size: 3_600.0 }];

/// One axis, from zero.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Axis {
    /// Its end.
    pub(super) most: f64,
    /// Values that get a line and a label.
    pub(super) ticks: Vec<f64>,
    decimals: usize,
}

impl Axis {
    /// An axis that ends with a tick at or above `most`, with at most `ticks_max` steps.
    pub(super) fn to_tick(most: f64, ticks_max: u32) -> Self {
        let most = if most > 0.0 { most } else { 1.0 };
        let axis = Self::to_value(most, ticks_max);
        let step = axis.ticks[1];
        let steps = (most / step - 1e-9).ceil().max(1.0);
        Self { most: steps * step, ticks: ticks(step, steps), ..axis }
    }

    /// An axis that ends at `most`, with at most `ticks_max` steps.
    pub(super) fn to_value(most: f64, ticks_max: u32) -> Self {
        let most = if most > 0.0 { most } else { 1.0 };
        let rough = most / f64::from(ticks_max);
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .map(|times| times * power)
            .into_iter()
            .find(|step| *step >= rough * 0.999_999);
        let step = step.unwrap_or(10.0 * power);
        Self { most, ticks: ticks(step, (most / step + 1e-9).floor()), decimals: decimals(step) }
    }

    /// How a tick is labelled.
    pub(super) fn label(&self, tick: f64) -> String {
        format!("{tick:.*}", self.decimals)
    }
}

/// Multiples of `step` from zero; always two at least.
fn ticks(step: f64, steps: f64) -> Vec<f64> {
    let mut ticks = vec![0.0, step];
    while ticks[ticks.len() - 1] < steps * step * 0.999_999 {
        ticks.push(ticks[ticks.len() - 1] + step);
    }
    ticks
}

/// As many as a step needs to be told from the next.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few, and not below zero")]
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
    fn an_axis_ends_above_what_it_shows() {
        let axis = Axis::to_tick(4.45, 4);
        assert_eq!((labels(&axis), axis.most), (vec!["0".into(), "2".into(), "4".into(), "6".into()], 6.0));
        assert_eq!(labels(&Axis::to_tick(0.35, 4)), ["0.0", "0.1", "0.2", "0.3", "0.4"]);
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
        assert_eq!((labels(&axis), axis.most), (vec!["0".into(), "1".into(), "2".into(), "3".into()], 3.86));
    }

    #[test]
    fn units_keep_numbers_short() {
        assert_eq!(unit(&BYTES, 2.5e9).name, "GiB");
        assert_eq!(unit(&BYTES, 0.0).name, "B");
        assert_eq!(unit(&RATES, 125e6).name, "Gbit/s");
        assert_eq!(unit(&RATES, 124e6).name, "Mbit/s");
    }
}
