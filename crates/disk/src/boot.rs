//! Which run of the system this is.

/// The number that the kernel gives each run of the system; `None` where it is not to be read, as in a service that sees of
/// `/proc` only processes.
#[must_use]
pub fn boot_id() -> Option<u128> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    parse(text.trim_end())
}

/// Reads 32 hexadecimal digits with dashes among them.
fn parse(text: &str) -> Option<u128> {
    u128::from_str_radix(&text.replace('-', ""), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_read_over_their_dashes() {
        let number = 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef;
        assert_eq!(parse("01234567-89ab-cdef-0123-456789abcdef"), Some(number));
        for other in ["", "-", "x", "101234567-89ab-cdef-0123-456789abcdef"] {
            assert_eq!(parse(other), None, "{other}");
        }
    }
}
