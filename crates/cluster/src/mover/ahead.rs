//! How many items a mover takes before it needs them.

use std::time::Duration;

use tokio::time::Instant;

/// Weighs how long an item takes to be taken against how long it takes to be sent.
///
/// On a short path one item is enough: the next is taken when half of it has been read, and what a node has beyond
/// that keeps it at work when all others have ended. Where the broker answers late, a node would stand still until
/// its next item is there.
#[derive(Debug)]
pub(super) struct Ahead {
    /// How long the last items took to be taken, in turn.
    takes: [Duration; 4],
    taken: usize,
    /// When half of an item was last read, and how long it is between two such, by a moving average.
    sent_at: Option<Instant>,
    between: Duration,
}

impl Ahead {
    pub(super) const fn new() -> Self {
        Self { takes: [Duration::ZERO; 4], taken: 0, sent_at: None, between: Duration::ZERO }
    }

    /// Notes how long an item took to be taken.
    pub(super) fn took(&mut self, time: Duration) {
        self.takes[self.taken % self.takes.len()] = time;
        self.taken += 1;
    }

    /// Notes that half of an item has been read by now.
    pub(super) fn sent(&mut self, now: Instant) {
        if let Some(before) = self.sent_at.replace(now) {
            let time = now.duration_since(before);
            self.between = if self.between.is_zero() { time } else { (3 * self.between + time) / 4 };
        }
    }

    /// So many items may have more than half of their bytes to be read at once.
    pub(super) fn items(&self) -> usize {
        // whoever takes from an empty queue waits: the shortest time is the path's
        let take = self.takes.iter().min().copied().unwrap_or_default();
        // an answer that comes before a quarter of an item has been sent is in time
        let quarters = 4 * take.as_nanos() / self.between.as_nanos().max(1);
        1 + usize::try_from(quarters.div_ceil(4)).unwrap_or(FURTHER_MAX).min(FURTHER_MAX)
    }
}

/// The most items beside the one.
const FURTHER_MAX: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    fn ahead(takes: [u64; 4], between: u64) -> usize {
        let mut ahead = Ahead::new();
        for take in takes {
            ahead.took(Duration::from_millis(take));
        }
        let begin = Instant::now();
        for number in 0..5 {
            ahead.sent(begin + Duration::from_millis(number * between));
        }
        ahead.items()
    }

    #[test]
    fn items_are_taken_ahead_where_the_broker_answers_late() {
        assert_eq!(Ahead::new().items(), 1, "nothing is known yet");
        assert_eq!(ahead([1; 4], 330), 1);
        assert_eq!(ahead([90; 4], 800), 1);
        assert_eq!(ahead([90; 4], 330), 2);
        assert_eq!(ahead([90; 4], 170), 2);
        assert_eq!(ahead([90; 4], 100), 2);
        assert_eq!(ahead([90; 4], 40), 4);
        assert_eq!(ahead([90; 4], 1), 4);
    }

    #[test]
    fn a_queue_that_was_empty_does_not_count() {
        assert_eq!(ahead([5_000, 1, 4_000, 3_000], 170), 1);
    }
}
