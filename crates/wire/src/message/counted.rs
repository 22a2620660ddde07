//! Counts the names and paths of a message during decoding.
//!
//! The decoder in this module sees every string of a message. Before it decodes a string, it checks the count and
//! requests memory. In every list that may be long, each element begins with a name or a path. So the count limits the
//! memory of all lists in a message, at any level of nesting.

use postcard::de_flavors::{Flavor, Slice};
use postcard::{Error, Result};

use crate::error::WireError;
use crate::limits::{MESSAGE_STRINGS_MAX, within};

/// A decoder for the bytes of a message. It calls `room` with a number of additional strings, and `room` grants or
/// refuses memory for them.
pub(super) struct StringCounter<'de, R> {
    bytes: Slice<'de>,
    room: R,
    count: usize,
    /// The number of strings that `room` has granted.
    granted: usize,
    refused: Option<WireError>,
}

/// Number of strings for which one call of `room` requests memory.
const GRANT_STRINGS: usize = 32;

impl<'de, R: FnMut(usize) -> std::result::Result<(), WireError>> StringCounter<'de, R> {
    pub(super) fn new(bytes: &'de [u8], room: R) -> Self {
        Self {
            bytes: Slice::new(bytes),
            room,
            count: 0,
            granted: 0,
            refused: None,
        }
    }

    fn count(&mut self) -> std::result::Result<(), WireError> {
        within(
            "number of names and paths in a message",
            self.count + 1,
            MESSAGE_STRINGS_MAX,
        )?;
        if self.count == self.granted {
            (self.room)(GRANT_STRINGS)?;
            self.granted += GRANT_STRINGS;
        }
        self.count += 1;
        Ok(())
    }
}

impl<'de, R: FnMut(usize) -> std::result::Result<(), WireError> + 'de> Flavor<'de>
    for StringCounter<'de, R>
{
    /// The remaining bytes, and the error with which `room` or the limit refused a string, if any.
    type Remainder = (&'de [u8], Option<WireError>);
    type Source = &'de [u8];

    fn pop(&mut self) -> Result<u8> {
        self.bytes.pop()
    }

    fn size_hint(&self) -> Option<usize> {
        self.bytes.size_hint()
    }

    fn try_take_n(&mut self, count: usize) -> Result<&'de [u8]> {
        if let Err(error) = self.count() {
            self.refused = Some(error);
            return Err(Error::SerdeDeCustom);
        }
        self.bytes.try_take_n(count)
    }

    fn finalize(self) -> Result<Self::Remainder> {
        Ok((self.bytes.finalize()?, self.refused))
    }
}
