//! Serde helpers for lists in messages. A list that is too long is refused before memory is allocated for it.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Deserializes a list of at most `MAX` elements.
///
/// # Errors
/// The list has more elements, or the deserializer fails.
pub fn at_most<'de, const MAX: usize, T, D>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    deserializer.deserialize_seq(AtMost::<MAX, T>(PhantomData))
}

struct AtMost<const MAX: usize, T>(PhantomData<T>);

impl<'de, const MAX: usize, T: Deserialize<'de>> Visitor<'de> for AtMost<MAX, T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {MAX}")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Vec<T>, A::Error> {
        let announced_len = elements.size_hint().unwrap_or(0);
        if announced_len > MAX {
            return Err(A::Error::invalid_length(announced_len, &self));
        }
        // The peer may announce any length, so memory is allocated as elements arrive.
        let mut list = Vec::with_capacity(announced_len.min(PREALLOCATED_MAX));
        while let Some(element) = elements.next_element()? {
            if list.len() == MAX {
                return Err(A::Error::invalid_length(MAX + 1, &self));
            }
            list.push(element);
        }
        // The list may live for a long time, so unused capacity is freed.
        list.shrink_to_fit();
        Ok(list)
    }
}

/// Maximum number of elements for which memory is allocated before they arrive.
const PREALLOCATED_MAX: usize = 64;
