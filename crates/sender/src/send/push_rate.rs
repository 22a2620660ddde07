//! The rate that all lanes of a push keep together, and who has set it.

use zmove_transport::SharedRate;
use zmove_types::{Lock, RateLimit};
use zmove_wire::Limit;

/// The lowest rate that somebody has set; at first none.
#[derive(Debug, Default)]
pub(crate) struct PushRate {
    /// What lanes keep.
    pub(crate) shared: SharedRate,
    lowest: Lock<Option<Lowest>>,
}

#[derive(Clone, Copy, Debug)]
struct Lowest {
    limit: RateLimit,
    by: Limit,
}

impl PushRate {
    /// Keeps `limit` too, which is that of `by`.
    pub(crate) fn lower(&self, limit: RateLimit, by: Limit) {
        let mut lowest = self.lowest.lock();
        if lowest.is_none_or(|lowest| limit.bytes_per_second() < lowest.limit.bytes_per_second()) {
            *lowest = Some(Lowest { limit, by });
            self.shared.set(limit);
        }
    }

    /// Whose rate it is that lanes wait for.
    pub(crate) fn limit(&self) -> Limit {
        let lowest = *self.lowest.lock();
        lowest.map_or(Limit::OwnRate, |lowest| lowest.by)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_rate_is_kept_and_its_owner_known() {
        let rate = PushRate::default();
        let lower = |text: &str, by| {
            rate.lower(text.parse().unwrap(), by);
            rate.limit()
        };
        assert_eq!(lower("10MB", Limit::OwnRate), Limit::OwnRate);
        assert_eq!(lower("20MB", Limit::AllowedRate), Limit::OwnRate);
        assert_eq!(lower("5MB", Limit::AllowedRate), Limit::AllowedRate);
    }
}
