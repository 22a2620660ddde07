//! The requests in flight and the numbers that identify them in the kernel's completions.
//!
//! **Invariant:** a number consists of a slot's index and the slot's use count, so it identifies one request only. A
//! duplicate or late completion finds no request.

use crate::op::RingPart;

/// The slots for requests in flight.
#[derive(Debug)]
pub(crate) struct Slots {
    slots: Vec<RingSlot>,
    free: Vec<u32>,
}

#[derive(Debug, Default)]
struct RingSlot {
    generation: u32,
    part: Option<RingPart>,
}

/// The number of the request that wakes the thread. No slot has this number.
pub(crate) const WAKE: u64 = u64::MAX;
/// The number of the request that cancels all other requests.
pub(crate) const CANCEL: u64 = u64::MAX - 1;

impl Slots {
    pub(crate) fn new(count: u16) -> Self {
        let slots = (0..count).map(|_| RingSlot::default()).collect();
        Self {
            slots,
            free: (0..u32::from(count)).rev().collect(),
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    pub(crate) fn are_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// Stores a part until its completion and returns the part's number.
    pub(crate) fn insert(&mut self, part: RingPart) -> u64 {
        let index = self.free.pop().expect("asked for room before");
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.part = Some(part);
        u64::from(slot.generation) << 32 | u64::from(index)
    }

    /// Removes and returns the part with a number. Returns `None` if the part was already released.
    pub(crate) fn release(&mut self, number: u64) -> Option<RingPart> {
        let generation = number >> 32;
        let index = u32::try_from(number & 0xffff_ffff).ok()?;
        let slot = self.slots.get_mut(index as usize)?;
        if u64::from(slot.generation) != generation {
            return None;
        }
        let part = slot.part.take()?;
        self.free.push(index);
        Some(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::tests::part;

    #[test]
    fn a_number_is_good_for_one_occupant() {
        let mut slots = Slots::new(1);
        let first = slots.insert(part());
        assert!(!slots.has_room() && !slots.are_empty());
        assert!(slots.release(first).is_some());
        assert!(slots.release(first).is_none());
        let second = slots.insert(part());
        assert_ne!(first, second);
        assert!(slots.release(first).is_none());
        assert!(slots.release(WAKE).is_none() && slots.release(CANCEL).is_none());
        assert!(slots.release(second).is_some() && slots.are_empty());
    }
}
