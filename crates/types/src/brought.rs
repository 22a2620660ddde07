//! What the sessions of one run have brought to the target, as far as it takes to say whether one of them has brought
//! anything new.
//!
//! **Invariant:** what is brought again and again, since it changes all the time or is not kept, is new in a bounded
//! number of sessions, whatever is brought beside it.

use std::hash::Hash;
use std::mem;

use crate::hash_set::HashOnlySet;

/// What the sessions of one run have brought: files by their paths, groups of large ones by path and number.
#[derive(Debug, Default)]
pub struct Brought {
    /// What has been brought before.
    known: HashOnlySet,
    has_new: bool,
}

/// So many things are remembered, in about a megabyte; beyond that only the first new one of each session.
const KNOWN_MAX: usize = 1 << 16;

impl Brought {
    /// Notes something that has been brought.
    pub fn note(&mut self, thing: &impl Hash) {
        if !self.has_new || self.known.len() < KNOWN_MAX {
            self.has_new |= self.known.insert(thing);
        }
    }

    /// Whether anything new has been brought since this was last asked.
    pub fn take_new(&mut self) -> bool {
        mem::take(&mut self.has_new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_again_is_not_new() {
        let mut brought = Brought::default();
        let mut is_new = |things: &[u64]| {
            things.iter().for_each(|thing| brought.note(thing));
            brought.take_new()
        };
        assert!(!is_new(&[]) && is_new(&[1, 2, 3]));
        assert!(!is_new(&[2]) && !is_new(&[1, 3]) && is_new(&[3, 4]) && !is_new(&[4, 3, 2, 1]));
    }

    #[test]
    fn of_what_is_too_much_to_be_remembered_each_session_makes_one_known() {
        let mut brought = Brought::default();
        let few = 5;
        let mut sessions = 0;
        loop {
            (0..KNOWN_MAX + few).for_each(|thing| brought.note(&thing));
            if !brought.take_new() {
                break;
            }
            sessions += 1;
        }
        assert_eq!((sessions, brought.known.len()), (1 + few, KNOWN_MAX + few));
    }
}
