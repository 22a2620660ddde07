//! The time that a connection may take.

use std::time::Duration;

/// How long a connection may take to be ready.
pub const DIAL_TIMEOUT: Duration = Duration::from_secs(30);
