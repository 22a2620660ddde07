//! Report counters on the wire: pairs of id and value, without those that are 0. A peer skips ids that it does not
//! know.

use serde::{Deserializer, Serialize, Serializer};
use zmove_types::Counters;

use super::list;

pub(super) fn serialize<S: Serializer>(
    counters: &Counters,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let counted = counters.rows().filter(|(_, value)| *value > 0);
    let pairs: Vec<_> = counted.map(|(row, value)| (row.id, value)).collect();
    pairs.serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Counters, D::Error> {
    let pairs: Vec<(u16, u64)> = list::at_most::<COUNTERS_MAX, _, _>(deserializer)?;
    let mut counters = Counters::default();
    pairs
        .into_iter()
        .for_each(|(id, value)| counters.set(id, value));
    Ok(counters)
}

/// The most counters in a message. Later versions may have more than this one knows.
const COUNTERS_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::WireError;
    use crate::message::{ToSender, decode_message, encode_message};

    fn decoded(pairs: &[(u16, u64)]) -> Result<ToSender, WireError> {
        const TAG: u8 = 12;
        let mut bytes = vec![TAG];
        bytes.extend(postcard::to_allocvec(pairs).unwrap());
        decode_message(&bytes)
    }

    #[test]
    fn each_counter_arrives_alone_and_with_all_others() {
        let mut all = Counters::default();
        for row in Counters::TABLE {
            let mut alone = Counters::default();
            let value = 1000 + u64::from(row.id);
            alone.set(row.id, value);
            all.set(row.id, value);
            assert_eq!(
                decoded(&[(row.id, value)]),
                Ok(ToSender::Counters(alone)),
                "{}",
                row.name
            );
        }
        let message = ToSender::Counters(all);
        assert_eq!(decode_message(&encode_message(&message)[4..]), Ok(message));
    }

    #[test]
    fn the_form_is_pinned() {
        let counters = Counters {
            files: 300,
            times_beyond_range: 1,
            ..Counters::default()
        };
        assert_eq!(
            encode_message(&ToSender::Counters(counters)),
            [7, 0, 0, 0, 12, 2, 1, 0xAC, 2, 20, 1][..]
        );
    }

    #[test]
    fn unknown_ids_are_skipped() {
        let known = Counters {
            failed: 5,
            ..Counters::default()
        };
        assert_eq!(
            decoded(&[(16, 5), (1000, 9)]),
            Ok(ToSender::Counters(known))
        );
    }

    #[test]
    fn the_number_of_counters_is_bounded() {
        let many = |count: usize| {
            let pairs: Vec<_> = (1000..).take(count).map(|id| (id, 1)).collect();
            decoded(&pairs)
        };
        assert_eq!(
            many(COUNTERS_MAX),
            Ok(ToSender::Counters(Counters::default()))
        );
        assert_eq!(many(COUNTERS_MAX + 1), Err(WireError::Message));
    }
}
