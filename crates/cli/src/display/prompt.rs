//! The prompt that asks the user to confirm a receiver's key.

use std::io::{self, BufRead, IsTerminal, Write};

use anyhow::Result;
use zmove_engine::{BoxError, Confirm, Remote};
use zmove_transport::Fingerprint;

use crate::value::exit::{Exit, failure};

/// A prompt on the terminal, for a push or a probe.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prompt;

impl Confirm for Prompt {
    fn confirm(&self, remote: &Remote, key: Fingerprint) -> Result<(), BoxError> {
        Ok(ask(remote, key, "run again with --accept-new")?)
    }
}

/// Returns once the user has confirmed the key. Without a terminal, the error contains the advice `otherwise`.
pub(crate) fn ask(remote: &Remote, fingerprint: Fingerprint, otherwise: &str) -> Result<()> {
    if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
        let text = format!(
            "the key of {remote} is not known: {fingerprint}. If this is the key that 'zmove serve' prints there, \
             {otherwise}"
        );
        return Err(failure(Exit::Authentication, text));
    }
    eprint!(
        "The host {remote} is not known yet. Its key is\n  {fingerprint}\nwhich should be the key that 'zmove serve' \
         prints there. Continue and pin this key (yes/no)? "
    );
    if !is_yes(&mut io::stdin().lock(), &mut io::stderr())? {
        return Err(failure(
            Exit::Authentication,
            "the host's key was not accepted",
        ));
    }
    Ok(())
}

/// Reads the answer and returns whether it is yes. Like ssh, it asks again after any answer other than yes or no. End
/// of input means no.
pub(super) fn is_yes(answers: &mut impl BufRead, screen: &mut impl Write) -> io::Result<bool> {
    loop {
        screen.flush()?;
        let mut answer = Vec::new();
        let is_over = answers.read_until(b'\n', &mut answer)? == 0;
        match answer.trim_ascii() {
            b"yes" => return Ok(true),
            b"no" => return Ok(false),
            _ if is_over => return Ok(false),
            _ => write!(screen, "Please type 'yes' or 'no': ")?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(mut answers: &[u8]) -> (bool, usize) {
        let mut screen = Vec::new();
        let is_yes = is_yes(&mut answers, &mut screen).unwrap();
        (
            is_yes,
            String::from_utf8(screen)
                .unwrap()
                .matches("type 'yes' or 'no'")
                .count(),
        )
    }

    #[test]
    fn whatever_is_neither_yes_nor_no_is_asked_about_again() {
        assert_eq!(asked(b"yes\n"), (true, 0));
        assert_eq!(asked(b"y\n\n\xff\n yes \n"), (true, 3));
        assert_eq!(asked(b"Y\nno\nyes\n"), (false, 1));
        assert_eq!(asked(b"ye"), (false, 1));
        assert_eq!(asked(b""), (false, 0));
    }
}
