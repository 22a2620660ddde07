//! Report counters on the wire: pairs of ID and value, in ascending order of ID and without zeros.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use zmove_types::Counters;

use super::list;

/// Report counters in encoded form. A peer ignores unknown IDs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CounterList(Vec<(u16, u64)>);

impl From<Counters> for CounterList {
    fn from(counters: Counters) -> Self {
        let counted = counters.rows().filter(|(_, value)| *value > 0);
        let mut pairs: Vec<_> = counted.map(|(row, value)| (row.id, value)).collect();
        pairs.sort_unstable();
        Self(pairs)
    }
}

impl From<CounterList> for Counters {
    fn from(CounterList(pairs): CounterList) -> Self {
        let mut counters = Self::default();
        for (id, value) in pairs {
            counters.set(id, value);
        }
        counters
    }
}

impl<'de> Deserialize<'de> for CounterList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let pairs: Vec<(u16, u64)> = list::at_most::<COUNTERS_MAX, _, _>(deserializer)?;
        let ascends = pairs.is_sorted_by(|(one, _), (next, _)| one < next);
        if ascends && pairs.iter().all(|(_, value)| *value > 0) {
            Ok(Self(pairs))
        } else {
            Err(D::Error::custom("the order or value of a counter"))
        }
    }
}

/// Maximum number of counters in a message. It exceeds the current number, because later versions may have more
/// counters.
const COUNTERS_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::WireError;
    use crate::message::{ToSender, decode_message, encode_message};

    fn decoded(pairs: &[(u16, u64)]) -> Result<Counters, WireError> {
        const TAG: u8 = 10;
        let mut bytes = vec![TAG];
        bytes.extend(postcard::to_allocvec(pairs).unwrap());
        match decode_message(&bytes)? {
            ToSender::Counters(counters) => Ok(counters.into()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_counter_arrives_alone_and_with_all_others() {
        let mut all = Counters::default();
        for row in Counters::TABLE {
            let mut alone = Counters::default();
            let value = 1000 + u64::from(row.id);
            alone.set(row.id, value);
            all.set(row.id, value);
            assert_eq!(decoded(&[(row.id, value)]), Ok(alone), "{}", row.name);
        }
        let message = ToSender::Counters(all.into());
        assert_eq!(decode_message(&encode_message(&message)[4..]), Ok(message));
    }

    #[test]
    fn the_form_is_pinned() {
        let counters = Counters {
            files: 300,
            replaced_below: 1,
            ..Counters::default()
        };
        assert_eq!(
            encode_message(&ToSender::Counters(counters.into())),
            [7, 0, 0, 0, 10, 2, 1, 0xAC, 2, 24, 1][..]
        );
    }

    #[test]
    fn unknown_ids_are_skipped() {
        let known = Counters {
            failed: 5,
            ..Counters::default()
        };
        assert_eq!(decoded(&[(16, 5), (1000, 9)]), Ok(known));
    }

    #[test]
    fn the_number_of_counters_is_bounded() {
        let many = |count: usize| {
            let pairs: Vec<_> = (1000..).take(count).map(|id| (id, 1)).collect();
            decoded(&pairs)
        };
        assert_eq!(many(COUNTERS_MAX), Ok(Counters::default()));
        assert_eq!(many(COUNTERS_MAX + 1), Err(WireError::Message));
    }

    #[test]
    fn a_counter_stands_once_and_in_its_place() {
        for pairs in [
            &[(1, 5), (1, 6)][..],
            &[(1000, 5), (1000, 5)],
            &[(16, 5), (1, 5)],
            &[(1, 0)],
            &[(1000, 0)],
        ] {
            assert_eq!(decoded(pairs), Err(WireError::Message), "{pairs:?}");
        }
    }
}
