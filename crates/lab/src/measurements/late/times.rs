//! Converts the times of a request to the form of the kernel.

use std::time::UNIX_EPOCH;

use fuser::TimeOrNow;
use rustix::fs::{Timespec, UTIME_NOW, UTIME_OMIT};

/// Converts the time of a request. A time that is not set remains unchanged.
pub(super) fn timespec(time: Option<TimeOrNow>) -> Timespec {
    match time {
        None => Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT,
        },
        Some(TimeOrNow::Now) => Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_NOW,
        },
        Some(TimeOrNow::SpecificTime(time)) => match time.duration_since(UNIX_EPOCH) {
            Ok(since) => Timespec {
                tv_sec: since.as_secs().cast_signed(),
                tv_nsec: since.subsec_nanos().into(),
            },
            Err(before) => {
                let before = before.duration();
                let nanos = i64::from(before.subsec_nanos());
                let borrowed = i64::from(nanos > 0);
                Timespec {
                    tv_sec: -before.as_secs().cast_signed() - borrowed,
                    tv_nsec: borrowed * NANOS_IN_A_SECOND - nanos,
                }
            }
        },
    }
}

const NANOS_IN_A_SECOND: i64 = 1_000_000_000;
