//! The number of running readers and the wanted number.

use zmove_types::Lock;

/// The wanted and the running number of readers. The readers with the highest numbers end first.
#[derive(Debug, Default)]
pub(crate) struct ReaderCount(Lock<Readers>);

#[derive(Debug, Default)]
struct Readers {
    wanted: usize,
    /// Number of running readers. They are numbered from zero without gaps.
    running: usize,
}

impl ReaderCount {
    /// Sets the wanted number of readers. Returns the number of running readers, so that the caller can start the
    /// missing ones.
    pub(crate) fn set_wanted(&self, wanted: usize) -> usize {
        let mut readers = self.0.lock();
        readers.wanted = wanted;
        let running = readers.running;
        readers.running = running.max(wanted);
        running
    }

    /// Records that the reader with this number could not be started. Readers with higher numbers were not started
    /// either.
    pub(crate) fn stop_before(&self, number: usize) {
        let mut readers = self.0.lock();
        readers.running = readers.running.min(number);
        readers.wanted = readers.wanted.min(number);
    }

    /// Returns whether this reader is surplus and must end.
    pub(crate) fn is_surplus(&self, number: usize) -> bool {
        let mut readers = self.0.lock();
        let goes = number >= readers.wanted && number + 1 == readers.running;
        readers.running -= usize::from(goes);
        goes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_go_from_the_last_and_come_back_once() {
        let readers = ReaderCount::default();
        assert_eq!(readers.set_wanted(4), 0);
        assert_eq!(readers.set_wanted(2), 4);
        assert!(!readers.is_surplus(2), "the last goes first");
        assert!(readers.is_surplus(3) && !readers.is_surplus(1));
        assert_eq!(readers.set_wanted(4), 3);
        assert!(!readers.is_surplus(3) && !readers.is_surplus(2));
    }

    #[test]
    fn readers_that_cannot_be_started_do_not_count() {
        let readers = ReaderCount::default();
        assert_eq!(readers.set_wanted(2), 0);
        assert_eq!(readers.set_wanted(5), 2);
        readers.stop_before(3);
        assert!(!readers.is_surplus(2), "as many as there are are wanted");
        assert_eq!(readers.set_wanted(5), 3, "they are tried again");
    }
}
