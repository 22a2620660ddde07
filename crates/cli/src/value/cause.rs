//! Names the cause of a failure with a single word for JSON. For an error of the operating system, this is the name of
//! the error, such as `ENOSPC`. For all other causes, zmove defines the word.

use nix::errno::Errno;
use zmove_wire::FaultCode;

/// Returns the name of a cause as a single word.
pub(crate) fn cause_of(code: FaultCode) -> String {
    match code {
        FaultCode::Os(number) => errno_name(number).unwrap_or_else(|| format!("errno_{number}")),
        code => snake(&format!("{code:?}")),
    }
}

/// Returns the name of a Linux error number.
pub(crate) fn errno_name(number: i32) -> Option<String> {
    let errno = Errno::from_raw(number);
    (errno != Errno::UnknownErrno).then(|| format!("{errno:?}"))
}

/// Converts `AlreadyThere` to `already_there`.
pub(crate) fn snake(words: &str) -> String {
    let mut text = String::new();
    for letter in words.chars() {
        if letter.is_ascii_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_words_of_programs() {
        let causes = [
            FaultCode::Os(28),
            FaultCode::Os(9999),
            FaultCode::DirectoryInTheWay,
            FaultCode::Locked,
        ];
        assert_eq!(
            causes.map(cause_of),
            ["ENOSPC", "errno_9999", "directory_in_the_way", "locked"]
        );
    }
}
