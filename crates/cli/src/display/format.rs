//! Formats numbers as people read them.

use zmove_types::ByteCount;

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
pub(crate) fn counted(number: u64, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

/// A rate of bytes in binary units.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate above zero")]
pub(crate) fn bytes_per_second(rate: f64) -> String {
    format!("{}/s", ByteCount(rate.round() as u64))
}

/// A rate of files without its unit, with a fraction where they are few.
pub(crate) fn files_per_second(rate: f64) -> String {
    format!("{rate:.*}", usize::from(rate < 10.0) * 2)
}
