//! File names that are known to cause problems.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use crate::torture::dice::Dice;

/// Draws a name that is unique to `number`.
pub(crate) fn draw(dice: &mut Dice, number: usize) -> OsString {
    let number = format!("{number:x}");
    let bytes = match dice.within(0..=19) {
        0 => [b"\xff\xfe\x80 ", number.as_bytes()].concat(),
        1 => [b"line\nbreak\r", number.as_bytes()].concat(),
        2 => [b"-rf --", number.as_bytes()].concat(),
        3 => [b".hidden", number.as_bytes()].concat(),
        4 => [b"*?[a]$(`'\"\\", number.as_bytes()].concat(),
        5 => [number.as_bytes(), "-Grüße-文件-\u{1F5C4}".as_bytes()].concat(),
        6 => [b"\x01\x1b[2J\x7f", number.as_bytes()].concat(),
        7 => [b" ", number.as_bytes(), b" "].concat(),
        8 => padded(&number, NAME_BYTES_MAX),
        9 => padded(&number, NAME_BYTES_MAX - usize::from(dice.one_in(2)) - 20),
        10 => [number.as_bytes(), b"."].concat(),
        _ => [b"f", number.as_bytes()].concat(),
    };
    OsString::from_vec(bytes)
}

fn padded(number: &str, bytes: usize) -> Vec<u8> {
    let mut name = number.as_bytes().to_vec();
    name.resize(bytes, b'n');
    name
}

const NAME_BYTES_MAX: usize = 255;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_name_comes_twice_and_each_can_be_one() {
        let mut dice = Dice::new(5);
        let names: HashSet<OsString> = (0..5000).map(|number| draw(&mut dice, number)).collect();
        assert_eq!(names.len(), 5000);
        let fits = |name: &OsString| {
            let bytes = name.as_encoded_bytes();
            (1..=NAME_BYTES_MAX).contains(&bytes.len())
                && !bytes.contains(&b'/')
                && !bytes.contains(&0)
        };
        assert!(names.iter().all(fits));
    }
}
