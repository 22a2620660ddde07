//! Bytes, rates, the group and the size classes of files.
//!
//! Byte counts are formatted in binary units (KiB, MiB) and rates of a path in decimal bits (Mbit/s), never with a bare
//! "M".

use std::fmt;
use std::time::Duration;

/// Size of a group, in bytes. Every file is hashed, split, verified and resumed in aligned groups of this size.
pub const GROUP_BYTES: u64 = 4 << 20;

/// A number of bytes, formatted in binary units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteCount(pub u64);

/// Bytes per second, formatted as bits per second in decimal units.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct ByteRate(pub f64);

/// The file size classes of the paper "When to use rsync" (Fang, Cottrell, Kissel).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SizeClass {
    /// Below 1 MiB ("lots of small files").
    Losf,
    /// From 1 MiB to below 1 GiB.
    Medium,
    /// 1 GiB and above.
    Large,
}

/// A group of a file: its number and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupSpan {
    /// Number of the group in its file, starting at 0.
    pub index: u32,
    /// Length of the group, in bytes. Only the last group of a file is shorter than [`GROUP_BYTES`].
    pub len: u32,
}

/// The error for an invalid size on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseSizeError(String);

impl SizeClass {
    /// Returns the class of a file of `bytes` bytes.
    #[must_use]
    pub fn of(bytes: u64) -> Self {
        match bytes {
            0..0x10_0000 => Self::Losf,
            0x10_0000..0x4000_0000 => Self::Medium,
            _ => Self::Large,
        }
    }
}

impl GroupSpan {
    /// Returns the offset of the group in its file.
    #[must_use]
    pub fn offset(self) -> u64 {
        u64::from(self.index) * GROUP_BYTES
    }

    /// Returns group `index` of a file of `file_bytes`, or `None` if it is past the end.
    #[must_use]
    pub fn of(file_bytes: u64, index: u32) -> Option<Self> {
        let offset = u64::from(index) * GROUP_BYTES;
        let len = file_bytes
            .checked_sub(offset)
            .filter(|&left| left > 0)?
            .min(GROUP_BYTES);
        Some(Self {
            index,
            len: u32::try_from(len).expect("a group is 4 MiB at most"),
        })
    }

    /// Returns the number of groups in a file of `file_bytes`, or `None` if the file is too large (16 PiB and more).
    #[must_use]
    pub fn count(file_bytes: u64) -> Option<u32> {
        u32::try_from(file_bytes.div_ceil(GROUP_BYTES)).ok()
    }
}

impl ByteRate {
    /// Returns the rate of `bytes` moved in `time`, or zero if no time has passed.
    #[must_use]
    pub fn new(bytes: u64, time: Duration) -> Self {
        let seconds = time.as_secs_f64();
        Self(if seconds > 0.0 {
            ByteCount(bytes).as_f64() / seconds
        } else {
            0.0
        })
    }
}

impl ByteCount {
    /// Returns the count as a float, for rates and shares. Exact up to 2⁵³.
    #[must_use]
    pub fn as_f64(self) -> f64 {
        self.0 as f64
    }
}

/// Converts a share between 0 and 1 to percent.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "between 0 and 100"
)]
#[must_use]
pub fn percent(share: f64) -> u8 {
    (share * 100.0).round().clamp(0.0, 100.0) as u8
}

impl fmt::Display for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            0..1024 => format!("{} B", self.0),
            _ => scaled(
                self.as_f64(),
                1024.0,
                &["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"],
            ),
        };
        f.pad(&text)
    }
}

impl fmt::Display for ByteRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&scaled(
            self.0 * 8.0,
            1000.0,
            &["kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"],
        ))
    }
}

/// Divides `value` by `base` until it is below `base`. Formats it with three significant digits and the matching unit.
fn scaled(value: f64, base: f64, units: &[&str]) -> String {
    let mut value = value / base;
    let mut unit = 0;
    while value >= base && unit + 1 < units.len() {
        value /= base;
        unit += 1;
    }
    let digits = if value < 10.0 {
        2
    } else {
        usize::from(value < 100.0)
    };
    format!("{value:.digits$} {}", units[unit])
}

/// Parses a size: `4096`, `64KiB` (binary), `64KB` (decimal), `2GiB`. `K`, `M`, `G`, `T` and `P` alone are binary, as
/// in `dd` and `rsync`.
///
/// # Errors
/// Returns a [`ParseSizeError`] that quotes the text if it is not a number with a known unit, or if it is 2⁶⁴ bytes or
/// more.
pub fn parse_size(text: &str) -> Result<ByteCount, ParseSizeError> {
    let fail = || ParseSizeError(text.to_owned());
    let split = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor = unit_factor(unit.trim()).ok_or_else(fail)?;
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(factor).map(ByteCount).ok_or_else(fail);
    }
    let value = number.parse::<f64>().map_err(|_| fail())? * ByteCount(factor).as_f64();
    if !(0.0..BYTES_END).contains(&value) {
        return Err(fail());
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the range was just checked"
    )]
    Ok(ByteCount(value as u64))
}

/// The first size that is too large, 2⁶⁴ bytes.
const BYTES_END: f64 = 1.844_674_407_370_955_2e19;

/// Parses a time span: `500ms`, `90s`, `5min`, `1.5h`, `7d`, `2w` or `0`. Returns `None` for any other text.
#[must_use]
pub fn parse_span(text: &str) -> Option<Duration> {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let number: f64 = text.strip_suffix(unit)?.parse().ok()?;
    let seconds = match unit.trim_start() {
        "ms" => 1e-3,
        "s" => 1.0,
        "min" => 60.0,
        "h" => 3_600.0,
        "d" => 86_400.0,
        "w" => 604_800.0,
        "" if text == "0" => 0.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(number * seconds).ok()
}

fn unit_factor(unit: &str) -> Option<u64> {
    const LETTERS: [char; 5] = ['k', 'm', 'g', 't', 'p'];
    let lower = unit.to_ascii_lowercase();
    if matches!(lower.as_str(), "" | "b") {
        return Some(1);
    }
    let power = u32::try_from(
        LETTERS
            .iter()
            .position(|&letter| lower.starts_with(letter))?,
    )
    .ok()?
        + 1;
    match &lower[1..] {
        "" | "ib" => Some(1024_u64.pow(power)),
        "b" => Some(1000_u64.pow(power)),
        _ => None,
    }
}

impl fmt::Display for ParseSizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "'{}' is not a size below 16 EiB: write a number with B, KiB, KB, MiB, MB, GiB, GB, TiB, TB, PiB or PB",
            self.0
        )
    }
}

impl std::error::Error for ParseSizeError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_cover_each_byte_once() {
        for bytes in [
            1,
            GROUP_BYTES - 1,
            GROUP_BYTES,
            GROUP_BYTES + 1,
            3 * GROUP_BYTES + 5,
        ] {
            let count = GroupSpan::count(bytes).unwrap();
            let spans: Vec<_> = (0..count)
                .map(|index| GroupSpan::of(bytes, index).unwrap())
                .collect();
            assert_eq!(
                spans.iter().map(|span| u64::from(span.len)).sum::<u64>(),
                bytes
            );
            assert!(
                spans
                    .windows(2)
                    .all(|w| w[0].offset() + u64::from(w[0].len) == w[1].offset())
            );
            assert_eq!(GroupSpan::of(bytes, count), None);
        }
        assert_eq!(GroupSpan::count(0), Some(0));
    }

    #[test]
    fn binary_and_decimal_units_differ() {
        assert_eq!(parse_size("64KiB"), Ok(ByteCount(65_536)));
        assert_eq!(parse_size("64KB"), Ok(ByteCount(64_000)));
        assert_eq!(parse_size("64k"), Ok(ByteCount(65_536)));
        assert_eq!(parse_size("1.5GiB"), Ok(ByteCount(3 << 29)));
        assert_eq!(parse_size("17"), Ok(ByteCount(17)));
        assert!(parse_size("5 parsecs").is_err());
    }

    #[test]
    fn a_size_is_below_16_eib_with_and_without_a_fraction() {
        assert_eq!(parse_size("16383PiB"), Ok(ByteCount(16_383 << 50)));
        assert_eq!(parse_size("16383.5PiB"), Ok(ByteCount(32_767 << 49)));
        for text in ["16384PiB", "16384.0PiB", "99999999999G"] {
            let error = parse_size(text).unwrap_err().to_string();
            let start = format!("'{text}' is not a size below 16 EiB: ");
            assert!(error.starts_with(&start), "{error}");
        }
    }

    #[test]
    fn sizes_and_rates_name_their_unit() {
        assert_eq!(ByteCount(999).to_string(), "999 B");
        assert_eq!(ByteCount(1536).to_string(), "1.50 KiB");
        assert_eq!(ByteCount(2 << 30).to_string(), "2.00 GiB");
        assert_eq!(ByteRate(125_000_000.0).to_string(), "1.00 Gbit/s");
    }

    #[test]
    fn classes_split_at_one_mebibyte_and_one_gibibyte() {
        assert_eq!(SizeClass::of((1 << 20) - 1), SizeClass::Losf);
        assert_eq!(SizeClass::of(1 << 20), SizeClass::Medium);
        assert_eq!(SizeClass::of((1 << 30) - 1), SizeClass::Medium);
        assert_eq!(SizeClass::of(1 << 30), SizeClass::Large);
    }
}
