//! Bytes as lower-case hexadecimal digits, and back.

use std::fmt;

/// Bytes that are formatted as two lower-case hexadecimal digits each.
#[derive(Clone, Copy, Debug)]
pub struct Hex<'a>(pub &'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Parses lower-case hexadecimal digits. Returns `None` if another character occurs or if there are not exactly `2 * N`
/// digits.
#[must_use]
pub fn from_hex<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let pairs = digits.chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return None;
    }
    let bytes: Option<Vec<_>> = pairs
        .map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?))
        .collect();
    bytes?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_read_as_they_are_written() {
        let bytes = [0x00, 0x9a, 0xff];
        assert_eq!(from_hex(Hex(&bytes).to_string().as_bytes()), Some(bytes));
        for wrong in ["", "009af", "009aff0", "009aff00", "009AFF", "009a+f"] {
            assert_eq!(from_hex::<3>(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
