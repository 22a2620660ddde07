//! What is to be told: entries of the outbox, which are written with the state that they tell, and the deliveries that
//! are made of them, one for each channel.
//!
//! **Invariant:** an entry goes in the transaction that makes its deliveries, and a delivery waits until it is noted
//! that it was made, or that it never will be: so each is made at least once.

use std::time::Duration;

use rusqlite::{Row, params};

use super::Store;
use crate::error::StoreError;
use crate::job::{JobEvent, JobId, Outgoing};
use crate::moment::Moment;

/// An event that is to be told by a channel.
#[derive(Clone, Debug, PartialEq)]
pub struct Delivery {
    /// What has happened.
    pub event: JobEvent,
    /// The channel's name.
    pub channel: String,
    /// What has become of it.
    pub state: DeliveryState,
    /// How often it was tried.
    pub tries: u32,
    /// When it is tried next, if it waits.
    pub due: Moment,
    /// Why the last try has failed.
    pub error: Option<String>,
}

/// What has become of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryState {
    /// To be made.
    Waiting,
    /// Made.
    Delivered,
    /// Not made, and not tried any more.
    GivenUp,
}

/// The end of a try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Try {
    /// Told.
    Delivered,
    /// Not told, and a later try may succeed.
    NotNow(String),
    /// No try will succeed.
    Never(String),
}

impl DeliveryState {
    /// The word for it, in the database and for users.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Delivered => "delivered",
            Self::GivenUp => "given_up",
        }
    }

    fn of(word: &str) -> Self {
        match word {
            "delivered" => Self::Delivered,
            "given_up" => Self::GivenUp,
            _ => Self::Waiting,
        }
    }
}

impl Store {
    /// The id of this store, which no other store has.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn id(&self) -> Result<String, StoreError> {
        self.read(|connection| connection.query_row("SELECT id FROM store", (), |row| row.get(0)))
    }

    /// What is to be told and was not dealt to channels yet, in the order in which it happened.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn outbox(&self) -> Result<Vec<Outgoing>, StoreError> {
        self.read(|connection| {
            let mut found = connection.prepare(
                "SELECT o.number, o.job, o.kind, j.tell FROM outbox o JOIN jobs j ON j.id = o.job
                 ORDER BY o.number LIMIT ?1",
            )?;
            let read = |row: &Row<'_>| {
                let tell: Option<String> = row.get(3)?;
                let tell = tell
                    .map(|names| names.lines().map(str::to_owned).collect())
                    .unwrap_or_default();
                Ok(Outgoing {
                    number: row.get(0)?,
                    job: JobId(row.get(1)?),
                    kind: row.get(2)?,
                    tell,
                })
            };
            found.query_map([DEALT_AT_ONCE], read)?.collect()
        })
    }

    /// Makes the deliveries of entries of the outbox, by the names of the channels that are to tell each.
    ///
    /// # Errors
    /// The store cannot be changed.
    pub fn deal(&mut self, dealt: &[(i64, Vec<String>)], now: Moment) -> Result<(), StoreError> {
        self.transact(|transaction| {
            let mut take = transaction.prepare("DELETE FROM outbox WHERE number = ?1")?;
            let mut add = transaction.prepare(
                "INSERT OR IGNORE INTO deliveries (number, channel, dealt, due) VALUES (?1, ?2, ?3, ?3)",
            )?;
            for (number, channels) in dealt {
                // another one may have been quicker
                if take.execute([number])? == 1 {
                    for channel in channels {
                        add.execute(params![number, channel, now.0])?;
                    }
                }
            }
            Ok(Ok(()))
        })
    }

    /// The channels that have something to tell now. A wait that is longer than any was begun before the clock was set
    /// back, and is over.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn channels_due(&self, now: Moment) -> Result<Vec<String>, StoreError> {
        self.read(|connection| {
            let sql =
                format!("SELECT DISTINCT channel FROM deliveries WHERE {IS_DUE} ORDER BY channel");
            connection
                .prepare(&sql)?
                .query_map([now.0, WAIT_MAX_MILLIS], |row| row.get(0))?
                .collect()
        })
    }

    /// What a channel has to tell now, in the order in which it happened; some of it where it is much.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn due(&self, channel: &str, now: Moment) -> Result<Vec<Delivery>, StoreError> {
        self.read(|connection| {
            let sql =
                format!("{DELIVERIES} WHERE {IS_DUE} AND channel = ?3 ORDER BY d.number LIMIT ?4");
            let of = params![now.0, WAIT_MAX_MILLIS, channel, TAKEN_AT_ONCE];
            connection
                .prepare(&sql)?
                .query_map(of, read_delivery)?
                .collect()
        })
    }

    /// The first moment after this at which something is to be told; none if there is none.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn next_telling(&self, now: Moment) -> Result<Option<Moment>, StoreError> {
        self.first_moment(
            "SELECT min(due) FROM deliveries WHERE state = 'waiting' AND due > ?1",
            now,
        )
    }

    /// What was told of a job, and what was not.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn deliveries(&self, id: JobId) -> Result<Vec<Delivery>, StoreError> {
        self.read(|connection| {
            let sql = format!("{DELIVERIES} WHERE e.job = ?1 ORDER BY d.number, d.channel");
            connection
                .prepare(&sql)?
                .query_map([id.0], read_delivery)?
                .collect()
        })
    }

    /// Notes how a try has ended. What a channel cannot tell now holds back all that it has to tell, so that a server
    /// that is down is asked once in a while, and not once for each event.
    ///
    /// # Errors
    /// The store cannot be changed.
    pub fn note(&mut self, delivery: &Delivery, end: &Try, now: Moment) -> Result<(), StoreError> {
        let Delivery {
            event: JobEvent { number, .. },
            channel,
            ..
        } = delivery;
        let tries = delivery.tries.saturating_add(1);
        let (state, error) = match end {
            Try::Delivered => (DeliveryState::Delivered, None),
            Try::NotNow(why) => (DeliveryState::Waiting, Some(why)),
            Try::Never(why) => (DeliveryState::GivenUp, Some(why)),
        };
        let due = now.after(wait_after(tries));
        self.transact(|transaction| {
            transaction
                .prepare(
                    "UPDATE deliveries SET state = ?3, error = ?4, tries = ?5, due = ?6
                     WHERE number = ?1 AND channel = ?2",
                )?
                .execute(params![number, channel, state.word(), error, tries, due.0])?;
            if state == DeliveryState::Waiting {
                transaction
                    .prepare(
                        "UPDATE deliveries SET due = max(due, ?2), error = coalesce(error, ?3),
                             state = iif(dealt <= ?4, 'given_up', state)
                         WHERE channel = ?1 AND state = 'waiting'",
                    )?
                    .execute(params![
                        channel,
                        due.0,
                        error,
                        now.0.saturating_sub(GIVEN_UP_AFTER_MILLIS)
                    ])?;
            }
            Ok(Ok(()))
        })
    }
}

/// How long a delivery waits after so many tries.
fn wait_after(tries: u32) -> Duration {
    let wait = WAIT_MIN.saturating_mul(1 << tries.saturating_sub(1).min(16));
    wait.min(Duration::from_millis(WAIT_MAX_MILLIS.unsigned_abs()))
}

fn read_delivery(row: &Row<'_>) -> rusqlite::Result<Delivery> {
    let event = JobEvent {
        number: row.get(0)?,
        job: JobId(row.get(1)?),
        time: Moment(row.get(2)?),
        kind: row.get(3)?,
        attempt: row.get(4)?,
        message: row.get(5)?,
    };
    let state: String = row.get(7)?;
    Ok(Delivery {
        event,
        channel: row.get(6)?,
        state: DeliveryState::of(&state),
        tries: row.get(8)?,
        due: Moment(row.get(9)?),
        error: row.get(10)?,
    })
}

const DELIVERIES: &str = "SELECT d.number, e.job, e.time, e.kind, e.attempt, e.message, d.channel, d.state, d.tries, \
    d.due, d.error FROM deliveries d JOIN events e ON e.number = d.number";
const IS_DUE: &str = "state = 'waiting' AND (due <= ?1 OR due > ?1 + ?2)";

/// The wait after the first try; each is twice as long as the one before.
const WAIT_MIN: Duration = Duration::from_secs(10);
/// The longest wait.
const WAIT_MAX_MILLIS: i64 = 60 * 60 * 1000;
/// How long it is tried.
const GIVEN_UP_AFTER_MILLIS: i64 = 3 * 24 * 60 * 60 * 1000;
/// Entries of the outbox that are dealt in one transaction.
const DEALT_AT_ONCE: i64 = 1000;
/// What a channel takes before it looks again.
const TAKEN_AT_ONCE: i64 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_an_hour() {
        let seconds: Vec<_> = (1..=11).map(|tries| wait_after(tries).as_secs()).collect();
        assert_eq!(
            seconds,
            [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600]
        );
        assert_eq!(wait_after(u32::MAX).as_secs(), 3600);
    }
}
