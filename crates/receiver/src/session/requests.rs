//! The requests of a peer that have not been answered, by what they ask. Each kind has a limit of its own: names of
//! directories take much more memory than verdicts.

use zmove_wire::limits::{
    HASHES_OUTSTANDING_MAX, LISTINGS_OUTSTANDING_MAX, REQUESTS_OUTSTANDING_MAX,
};
use zmove_wire::{Answer, Question};

use crate::error::SessionError;

/// The number of open requests of each kind.
#[derive(Debug, Default)]
pub(super) struct OpenRequests {
    entries: usize,
    hashes: usize,
    listings: usize,
}

impl OpenRequests {
    /// Checks a question against its limits, and counts it.
    ///
    /// # Errors
    /// [`SessionError`] when there is too much in it, or too many are open.
    pub(super) fn begin(&mut self, question: &Question) -> Result<(), SessionError> {
        question.check()?;
        let (open, most) = match question {
            Question::Send(_) | Question::Report(_) => {
                (&mut self.entries, REQUESTS_OUTSTANDING_MAX)
            }
            Question::Hash(_) => (&mut self.hashes, HASHES_OUTSTANDING_MAX),
            Question::Extraneous(_) => (&mut self.listings, LISTINGS_OUTSTANDING_MAX),
        };
        *open += 1;
        if *open > most {
            return Err(SessionError::out_of_order(
                "a request before the earlier ones are answered",
            ));
        }
        Ok(())
    }

    /// Counts a request as answered.
    pub(super) fn end(&mut self, answer: &Answer) {
        match answer {
            Answer::Verdicts(_) => self.entries -= 1,
            Answer::Hashes(_) => self.hashes -= 1,
            Answer::Extraneous(_) => self.listings -= 1,
        }
    }

    /// Counts a request about entries as answered, of which more groups were reported after its verdicts.
    pub(super) fn end_held(&mut self) {
        self.entries -= 1;
    }

    /// Whether no names are being listed.
    pub(super) fn lists_nothing(&self) -> bool {
        self.listings == 0
    }

    /// Whether no request is open.
    pub(super) fn are_answered(&self) -> bool {
        self.entries + self.hashes + self.listings == 0
    }
}
