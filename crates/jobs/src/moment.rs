//! Timestamps that stay valid across a reboot.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Serialize, Serializer};
use utoipa::ToSchema;

/// A wall-clock timestamp, which stays valid across a reboot. It is serialized in whole seconds since the Unix epoch.
///
/// The value is in milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, ToSchema)]
pub struct Moment(pub i64);

impl Moment {
    /// The earliest timestamp.
    pub const FIRST: Self = Self(i64::MIN);

    /// Returns the current time.
    #[must_use]
    pub fn now() -> Self {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Self(millis(since))
    }

    /// Returns the whole seconds since the Unix epoch.
    #[must_use]
    pub const fn seconds(self) -> i64 {
        self.0.div_euclid(1000)
    }

    /// Returns the timestamp `span` later.
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(millis(span)))
    }

    /// Returns the timestamp `span` earlier.
    #[must_use]
    pub fn before(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(millis(span)))
    }

    /// Returns the time from `earlier` to this timestamp, or zero if `earlier` is later because the clock was set back.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i64(self.seconds())
    }
}

pub(crate) fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_goes_back_gives_no_negative_time() {
        assert_eq!(Moment(5).since(Moment(9)), Duration::ZERO);
        assert_eq!(
            Moment(i64::MAX).after(Duration::from_secs(1)),
            Moment(i64::MAX)
        );
    }
}
