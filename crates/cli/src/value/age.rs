//! Spans of time in their typed and shown form.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A span of time: `90s`, `30min`, `12h`, `7d`, `2w`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Age(pub(crate) Duration);

/// Units with their seconds, the longest first.
const UNITS: [(&str, u64); 5] = [
    ("w", 7 * 24 * 60 * 60),
    ("d", 24 * 60 * 60),
    ("h", 60 * 60),
    ("min", 60),
    ("s", 1),
];

impl FromStr for Age {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fail =
            || format!("'{text}' is not a span of time: write a number with s, min, h, d or w");
        let split = text
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let number: u64 = number.parse().map_err(|_| fail())?;
        if number == 0 && unit.is_empty() {
            return Ok(Self(Duration::ZERO));
        }
        let (_, seconds) = UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .ok_or_else(fail)?;
        number
            .checked_mul(*seconds)
            .map(|seconds| Self(Duration::from_secs(seconds)))
            .ok_or_else(fail)
    }
}

impl fmt::Display for Age {
    /// Writes the span roughly, in its largest unit alone.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        // Weeks can be typed, but nobody counts in them.
        let units = UNITS[1..].iter();
        let (name, unit) = units
            .copied()
            .find(|(_, unit)| seconds >= *unit)
            .unwrap_or(UNITS[UNITS.len() - 1]);
        write!(f, "{} {name}", seconds / unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_read_and_shown() {
        let cases = [
            ("0", 0, "0 s"),
            ("59s", 59, "59 s"),
            ("90s", 90, "1 min"),
            ("30min", 1800, "30 min"),
            ("12h", 43_200, "12 h"),
            ("7d", 604_800, "7 d"),
            ("2w", 1_209_600, "14 d"),
        ];
        for (text, seconds, shown) in cases {
            let age: Age = text.parse().unwrap();
            assert_eq!(
                (age, age.to_string().as_str()),
                (Age(Duration::from_secs(seconds)), shown),
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_no_age_is_refused() {
        for text in [
            "",
            "7",
            "d",
            "-1d",
            "1.5h",
            "7 d",
            "7days",
            "99999999999999999999s",
            "9999999999999999999w",
        ] {
            assert!(text.parse::<Age>().is_err(), "{text}");
        }
    }
}
