//! Entries that are gathered for questions to the receiver, in their order, and taken out by the message.

use std::collections::VecDeque;

/// The limits of one message, or its load.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MessageLoad {
    pub(crate) names: usize,
    pub(crate) name_bytes: usize,
}

/// Entries that wait for a message.
#[derive(Debug)]
pub(crate) struct Gathered<T> {
    /// The most that one message may hold.
    most: MessageLoad,
    /// The entries, each with the bytes of its name.
    waiting: VecDeque<(T, usize)>,
    name_bytes: usize,
    /// The number of the next message.
    next: u64,
}

impl<T> Gathered<T> {
    pub(crate) const fn new(most: MessageLoad) -> Self {
        Self {
            most,
            waiting: VecDeque::new(),
            name_bytes: 0,
            next: 0,
        }
    }

    pub(crate) fn add(&mut self, entry: T, name_bytes: usize) {
        self.name_bytes += name_bytes;
        self.waiting.push_back((entry, name_bytes));
    }

    /// Whether there is enough for a message.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting.len() >= self.most.names || self.name_bytes >= self.most.name_bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The number of the next message, and its entries: those that have waited longest.
    pub(crate) fn take(&mut self) -> (u64, Vec<T>) {
        let mut entries = Vec::with_capacity(self.waiting.len().min(self.most.names));
        let mut bytes = 0;
        while entries.len() < self.most.names && bytes < self.most.name_bytes {
            let Some((entry, name_bytes)) = self.waiting.pop_front() else {
                break;
            };
            bytes += name_bytes;
            entries.push(entry);
        }
        self.name_bytes -= bytes;
        self.next += 1;
        (self.next - 1, entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last name may go beyond the bytes: the limit of a message leaves room for one.
    #[test]
    fn a_message_holds_what_has_waited_longest_within_both_limits() {
        let mut gathered = Gathered::new(MessageLoad {
            names: 3,
            name_bytes: 10,
        });
        (0..3).for_each(|entry| gathered.add(entry, 1));
        assert!(gathered.is_full(), "by its names");
        (3..7).for_each(|entry| gathered.add(entry, 8));
        assert_eq!(gathered.take(), (0, vec![0, 1, 2]));
        assert!(gathered.is_full(), "by its bytes");
        assert_eq!(gathered.take(), (1, vec![3, 4]));
        assert_eq!(gathered.take(), (2, vec![5, 6]));
        assert!(gathered.is_empty() && !gathered.is_full());
    }
}
