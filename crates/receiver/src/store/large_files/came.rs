//! What has come of a large file, to be found again on the storage ([`proving`](crate::store::proving)).

use std::collections::HashMap;

use zmove_types::Cv;
use zmove_wire::WireError;

use crate::quota::{Booking, Quota};
use crate::resume::parts::GROUP_KEPT_BYTES;

/// The values by which the groups of a large file came, to be found again on the storage.
#[derive(Debug)]
pub(crate) struct Came {
    pub(crate) values: HashMap<u32, Cv>,
    pub(crate) held: Booking,
}

impl Came {
    /// Nothing yet, whose memory is booked on `quota`.
    pub(crate) fn new(quota: &Quota) -> Self {
        Self { values: HashMap::new(), held: quota.book_nothing() }
    }

    /// Notes the value of a group.
    ///
    /// # Errors
    /// There is no memory for it.
    pub(crate) fn note(&mut self, index: u32, cv: Cv) -> Result<(), WireError> {
        if self.values.insert(index, cv).is_none() {
            self.held.grow(GROUP_KEPT_BYTES)?;
        }
        Ok(())
    }
}
