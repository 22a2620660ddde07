//! What has been told of a job, so that it is told once.

use zmove_types::{HashOnlySet, Lock};

/// The lines that have been told of a job: work that is done again, in another session or by another node, fails again
/// in the same words.
#[derive(Debug, Default)]
pub struct SeenMessages {
    lines: Lock<HashOnlySet>,
    /// What the lines are about: what they have in quotation marks.
    named: Lock<HashOnlySet>,
}

impl SeenMessages {
    /// Whether a line is told for the first time. From very many lines on all are.
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

    /// Whether a line has been told, as far as that is remembered.
    pub(crate) fn has(&self, line: &str) -> bool {
        self.lines.lock().contains(line)
    }

    /// Whether a line has been told about this path, as it is shown.
    pub(crate) fn names(&self, path: &str) -> bool {
        self.named.lock().contains(path)
    }
}

/// Half a million lines have 20 MB.
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
