//! The rate limit shared by all lanes of a push, and its origin.

use zmove_transport::SharedRate;
use zmove_types::{Lock, RateLimit};
use zmove_wire::Limit;

/// The lowest of the rate limits that have been set. Initially there is no limit.
#[derive(Debug, Default)]
pub(crate) struct PushRate {
    /// The limit that the lanes obey.
    pub(crate) shared: SharedRate,
    lowest: Lock<Option<Lowest>>,
}

#[derive(Clone, Copy, Debug)]
struct Lowest {
    limit: RateLimit,
    by: Limit,
}

impl PushRate {
    /// Applies `limit` if it is lower than the current limit. `by` is the origin of the limit.
    pub(crate) fn lower(&self, limit: RateLimit, by: Limit) {
        let mut lowest = self.lowest.lock();
        if lowest.is_none_or(|lowest| limit.bytes_per_second() < lowest.limit.bytes_per_second()) {
            *lowest = Some(Lowest { limit, by });
            self.shared.set(limit);
        }
    }

    /// Returns the origin of the rate limit that lanes wait for.
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
