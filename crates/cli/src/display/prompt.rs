//! The question whether a key is that of a receiver.

use std::io::{BufRead, IsTerminal, Write};

use anyhow::Result;
use zmove_engine::{BoxError, Confirm, Remote};
use zmove_transport::Fingerprint;

use crate::value::exit::{Exit, failure};

/// A prompt at the terminal, for a push or a probe.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prompt;

impl Confirm for Prompt {
    fn confirm(&self, remote: &Remote, key: Fingerprint) -> Result<(), BoxError> {
        Ok(ask(remote, key, "run again with --accept-new")?)
    }
}

/// Returns when the user has answered yes. `otherwise` is the advice where there is no terminal.
pub(crate) fn ask(remote: &Remote, fingerprint: Fingerprint, otherwise: &str) -> Result<()> {
    if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        let text = format!(
            "the key of {remote} is not known: {fingerprint}. If this is the line that 'zmove serve' prints there, \
             {otherwise}"
        );
        return Err(failure(Exit::Authentication, text));
    }
    eprint!(
        "The receiver at {remote} is not known yet. Its key is\n  {fingerprint}\n\
         which should be the line that 'zmove serve' prints there. Go on and remember it (yes/no)? "
    );
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    if answer.trim() != "yes" {
        return Err(failure(Exit::Authentication, "the host's key was not accepted"));
    }
    Ok(())
}
