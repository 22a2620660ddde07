//! Remembers the reported messages of a job, so that each is reported once.

use zmove_types::{HashOnlySet, Lock};

/// The messages that have been reported for a job. If work is repeated in another session or on another node, it fails
/// again with the same message.
#[derive(Debug, Default)]
pub struct SeenMessages {
    lines: Lock<HashOnlySet>,
    /// Quoted parts of the messages, which are usually paths.
    named: Lock<HashOnlySet>,
}

impl SeenMessages {
    /// Records a message. Returns whether it is new. Once the maximum number of messages is reached, all messages count
    /// as new.
    pub fn report_once(&self, line: &str) -> bool {
        let mut lines = self.lines.lock();
        if lines.len() >= LINES_MAX {
            return true;
        }
        let quoted = line
            .split_once('\'')
            .and_then(|(_, rest)| rest.rsplit_once('\''));
        if let Some((quoted, _)) = quoted {
            self.named.lock().insert(quoted);
        }
        lines.insert(line)
    }

    /// Returns whether a message is remembered as reported.
    pub(crate) fn has(&self, line: &str) -> bool {
        self.lines.lock().contains(line)
    }

    /// Returns whether a message about this path was reported. `path` must be formatted for display.
    pub(crate) fn names(&self, path: &str) -> bool {
        self.named.lock().contains(path)
    }
}

/// Maximum number of remembered messages, which take about 20 MB.
const LINES_MAX: usize = 1 << 19;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_told_once() {
        let told = SeenMessages::default();
        assert_eq!(
            ["a", "b", "a"].map(|line| told.report_once(line)),
            [true, true, false]
        );
        assert!(told.has("b") && !told.has("c"));
    }

    #[test]
    fn a_path_is_known_that_a_line_was_about() {
        let told = SeenMessages::default();
        let lines = [
            "sender: list '/d/it's': no (os error 13)",
            "one ' alone",
            "none",
        ];
        lines
            .iter()
            .for_each(|line| assert!(told.report_once(line)));
        assert!(told.names("/d/it's") && !told.names("/d/it") && !told.names(" alone"));
    }
}
