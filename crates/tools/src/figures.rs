//! Numbers as people read them.

use zmove_types::{ByteCount, SizeClass};

/// A span of time in the unit that fits it.
pub(crate) fn duration(seconds: f64) -> String {
    match seconds {
        _ if seconds < 10.0 => format!("{seconds:.2} s"),
        _ if seconds < 120.0 => format!("{seconds:.0} s"),
        _ if seconds < 7_200.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3_600.0),
    }
}

/// A number of things, in singular or plural.
pub fn counted(number: u64, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

/// A rate of bytes in binary units.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate above zero"
)]
pub(crate) fn bytes_per_second(rate: f64) -> String {
    format!("{}/s", ByteCount(rate.round() as u64))
}

/// A rate of files without its unit, with a fraction where they are few.
pub fn files_per_second(rate: f64) -> String {
    format!("{rate:.*}", usize::from(rate < 10.0) * 2)
}

/// A share as a percentage.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// The share of a part in a whole; zero of nothing.
pub(crate) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        ByteCount(part).as_f64() / ByteCount(whole).as_f64()
    }
}

/// The name of a size class in JSON.
pub(crate) const fn class_key(class: SizeClass) -> &'static str {
    match class {
        SizeClass::Losf => "losf",
        SizeClass::Medium => "medium",
        SizeClass::Large => "large",
    }
}

/// A moment in seconds since 1970, to the minute.
pub fn minute(seconds: u64) -> String {
    format!(
        "{} {:02}:{:02} UTC",
        day(seconds),
        seconds % DAY_SECONDS / 3_600,
        seconds / 60 % 60
    )
}

const DAY_SECONDS: u64 = 86_400;

/// The date of a moment in seconds since 1970. The calculation has years that begin in March, so that a leap day is the
/// last of one.
pub(crate) fn day(seconds: u64) -> String {
    const DAYS_BEFORE: u64 = 719_468;
    const ERA_DAYS: u64 = 146_097;
    let days = seconds / DAY_SECONDS + DAYS_BEFORE;
    let era = days / ERA_DAYS;
    let day_of_era = days % ERA_DAYS;
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_dates() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_825_599, "2000-02-29 11:59 UTC"),
            (1_764_099_371, "2025-11-25 19:36 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(minute(seconds), expected);
        }
    }
}
