//! Entries gathered for requests to the receiver. They are taken in the order of their arrival, one request at a time.

use std::collections::VecDeque;

use zmove_wire::limits::{REQUESTED_ENTRIES_MAX, REQUESTED_NAME_BYTES_MAX};

use crate::plan::asked::AskedEntry;

/// Entries that wait for a request.
#[derive(Debug, Default)]
pub(crate) struct RequestBacklog {
    waiting: VecDeque<AskedEntry>,
    text_bytes: usize,
    /// The number of the next request.
    next: u64,
}

impl RequestBacklog {
    pub(crate) fn add(&mut self, asked: AskedEntry) {
        self.text_bytes += asked.text_bytes();
        self.waiting.push_back(asked);
    }

    /// Returns whether enough entries have been gathered to fill a request.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting.len() >= REQUESTED_ENTRIES_MAX || self.text_bytes >= REQUESTED_NAME_BYTES_MAX
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes the entries that have waited longest, as many as fit into one request. Returns the number of the request
    /// and these entries.
    pub(crate) fn take(&mut self) -> (u64, Vec<AskedEntry>) {
        let mut entries = Vec::with_capacity(self.waiting.len().min(REQUESTED_ENTRIES_MAX));
        let mut bytes = 0;
        while entries.len() < REQUESTED_ENTRIES_MAX && bytes < REQUESTED_NAME_BYTES_MAX {
            let Some(asked) = self.waiting.pop_front() else {
                break;
            };
            bytes += asked.text_bytes();
            entries.push(asked);
        }
        self.text_bytes -= bytes;
        self.next += 1;
        (self.next - 1, entries)
    }
}

#[cfg(test)]
mod tests {
    use zmove_scan::{Entry, EntryKind};

    use super::*;
    use crate::plan::pack::PackEntry;
    use crate::send::in_flight::tests::vanished;

    /// The last name may exceed the limit on bytes, because the limit of a message leaves room for one more name.
    #[test]
    fn a_message_holds_what_has_waited_longest_within_both_limits() {
        let file = vanished(1).remove(0);
        let asked = |text_bytes: usize| {
            let name_bytes = file.entry.name.as_bytes().len();
            let kind = EntryKind::Symlink(vec![b'x'; text_bytes - name_bytes].into());
            let entry = Entry {
                kind,
                ..file.entry.clone()
            };
            AskedEntry::new(&file.directory, PackEntry::Within(entry))
        };
        let mut gathered = RequestBacklog::default();
        (0..REQUESTED_ENTRIES_MAX).for_each(|_| gathered.add(asked(1)));
        assert!(gathered.is_full(), "by its names");
        let half = REQUESTED_NAME_BYTES_MAX / 2 + 1;
        (0..4).for_each(|_| gathered.add(asked(half)));
        let mut taken = || {
            let (number, entries) = gathered.take();
            (number, entries.len(), gathered.is_full())
        };
        assert_eq!(taken(), (0, REQUESTED_ENTRIES_MAX, true), "by its bytes");
        assert_eq!(taken(), (1, 2, true));
        assert_eq!(taken(), (2, 2, false));
        assert!(gathered.is_empty());
    }
}
