//! Notifications. A notification states that an event is to be sent by one method. It is written in the transaction
//! that adds the event.
//!
//! **Invariant:** a notification stays pending until a final result is recorded, so each event is sent at least once.
//! Only notifications for methods that are not configured are dropped.

use std::time::Duration;

use rusqlite::{Row, Transaction, params};
use strum::{AsRefStr, Display, EnumString};

use super::Store;
use super::rows::read_event;
use crate::error::StoreError;
use crate::job::{JobEvent, JobId};
use crate::moment::Moment;

/// A method of sending events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Display, EnumString, AsRefStr)]
#[strum(serialize_all = "lowercase")]
pub enum NotifyMethod {
    /// A local command.
    Hook,
    /// An HTTPS server.
    Webhook,
}

/// An event and the state of its delivery by one method.
#[derive(Clone, Debug, PartialEq)]
pub struct Notification {
    /// The event.
    pub event: JobEvent,
    /// The method.
    pub method: NotifyMethod,
    /// The state of the delivery.
    pub state: NotificationState,
    /// Number of attempts made.
    pub tries: u32,
    /// The time of the next attempt, if the notification is pending.
    pub due: Moment,
    /// The reason why the last attempt failed.
    pub error: Option<String>,
}

/// The state of a notification's delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumString, AsRefStr)]
#[strum(serialize_all = "snake_case")]
pub enum NotificationState {
    /// Pending: to be sent.
    Waiting,
    /// Accepted by the hook or the server.
    Delivered,
    /// Not accepted, and not sent again.
    GivenUp,
}

impl NotifyMethod {
    /// All methods.
    pub const ALL: [Self; 2] = [Self::Hook, Self::Webhook];
}

/// Adds the notifications of an event for all methods. The runner later drops those for methods that are not
/// configured. This function cannot leave them out, because other processes add events too and do not read the
/// configuration.
pub(super) fn notify(
    transaction: &Transaction<'_>,
    number: i64,
    now: Moment,
) -> rusqlite::Result<()> {
    let mut add = transaction
        .prepare("INSERT INTO notifications (number, method, due) VALUES (?1, ?2, ?3)")?;
    for method in NotifyMethod::ALL {
        add.execute(params![number, method.as_ref(), now.0])?;
    }
    Ok(())
}

impl Store {
    /// Returns the id of this store, which is unique among all stores.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn id(&self) -> Result<String, StoreError> {
        self.value("SELECT id FROM store", ())
    }

    /// Drops pending notifications for methods that are not configured. Notifications that have failed at least once
    /// stay visible as given up.
    ///
    /// # Errors
    /// The store cannot be changed.
    pub fn drop_notifications(&mut self, methods: &[NotifyMethod]) -> Result<(), StoreError> {
        let words: Vec<_> = methods.iter().map(|method| format!("'{method}'")).collect();
        let waiting = format!("state = 'waiting' AND method IN ({})", words.join(", "));
        // The runner makes this call in each iteration, and usually there is nothing to change. The check avoids taking
        // the write lock in that case.
        let exists = format!("SELECT EXISTS (SELECT 1 FROM notifications WHERE {waiting})");
        if !self.value(&exists, ())? {
            return Ok(());
        }
        self.transact(|transaction| {
            transaction.execute_batch(&format!(
                "UPDATE notifications SET state = 'given_up' WHERE {waiting} AND tries > 0;
                 DELETE FROM notifications WHERE {waiting};"
            ))?;
            Ok(Ok(()))
        })
    }

    /// Returns the first notification of a method that is due. If a notification is due later than the maximum wait
    /// allows, the clock was set back after it was scheduled. Such a notification counts as due.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn next_notification(
        &self,
        method: NotifyMethod,
        now: Moment,
    ) -> Result<Option<Notification>, StoreError> {
        let sql = format!(
            "{NOTIFICATIONS} WHERE n.method = ?1 AND n.state = 'waiting' AND (n.due <= ?2 OR n.due > ?2 + ?3)
             ORDER BY n.number LIMIT 1"
        );
        let parameters = (method.as_ref(), now.0, WAIT_MAX_MILLIS);
        let found = self.rows(&sql, parameters, read_notification)?;
        Ok(found.into_iter().next())
    }

    /// Returns the next time at which a notification of a method is due.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn next_attempt(
        &self,
        method: NotifyMethod,
        now: Moment,
    ) -> Result<Option<Moment>, StoreError> {
        let sql = "SELECT min(due) FROM notifications WHERE method = ?1 AND state = 'waiting' AND due > ?2";
        let due: Option<i64> = self.value(sql, (method.as_ref(), now.0))?;
        Ok(due.map(Moment))
    }

    /// Returns the notifications of a job.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn notifications(&self, id: JobId) -> Result<Vec<Notification>, StoreError> {
        let sql = format!("{NOTIFICATIONS} WHERE e.job = ?1 ORDER BY n.number, n.method");
        self.rows(&sql, [id.0], read_notification)
    }

    /// Records the result of an attempt. A failure postpones all notifications of the method. Otherwise, a server that
    /// is down would receive a request for each event. A notification is given up once the method has failed for too
    /// long.
    ///
    /// # Errors
    /// The store cannot be changed.
    pub fn record_attempt(
        &mut self,
        notification: &Notification,
        result: &Result<(), String>,
        now: Moment,
    ) -> Result<(), StoreError> {
        let number = notification.event.number;
        let method = notification.method.as_ref();
        self.transact(|transaction| {
            match result {
                Ok(()) => transaction.execute(
                    "UPDATE notifications SET state = 'delivered', error = NULL, tries = tries + 1
                     WHERE number = ?1 AND method = ?2",
                    params![number, method],
                )?,
                Err(error) => transaction.execute(
                    "UPDATE notifications SET tries = tries + (number = ?1), error = ?3,
                         due = iif(number = ?1, ?4, max(due, ?4)), failing_since = coalesce(failing_since, ?5),
                         state = iif(failing_since <= ?6, 'given_up', state)
                     WHERE method = ?2 AND state = 'waiting'",
                    params![
                        number,
                        method,
                        error,
                        now.after(wait_after(notification.tries + 1)).0,
                        now.0,
                        now.0.saturating_sub(GIVEN_UP_AFTER_MILLIS)
                    ],
                )?,
            };
            Ok(Ok(()))
        })
    }
}

/// Returns the wait after `tries` failed attempts.
fn wait_after(tries: u32) -> Duration {
    let wait = WAIT_MIN.saturating_mul(1 << tries.saturating_sub(1).min(16));
    wait.min(Duration::from_millis(WAIT_MAX_MILLIS.unsigned_abs()))
}

fn read_notification(row: &Row<'_>) -> rusqlite::Result<Notification> {
    let method: String = row.get(6)?;
    let state: String = row.get(7)?;
    Ok(Notification {
        event: read_event(row)?,
        method: method.parse().unwrap_or(NotifyMethod::Hook),
        state: state.parse().unwrap_or(NotificationState::Waiting),
        tries: row.get(8)?,
        due: Moment(row.get(9)?),
        error: row.get(10)?,
    })
}

const NOTIFICATIONS: &str = "SELECT n.number, e.job, e.time, e.kind, e.attempt, e.message, n.method, n.state, \
    n.tries, n.due, n.error FROM notifications n JOIN events e ON e.number = n.number";

/// The wait after the first failed attempt. Each further wait is twice as long.
const WAIT_MIN: Duration = Duration::from_secs(10);
/// The maximum wait.
const WAIT_MAX_MILLIS: i64 = 60 * 60 * 1000;
/// How long a method may fail before its notifications are given up.
const GIVEN_UP_AFTER_MILLIS: i64 = 3 * 24 * 60 * 60 * 1000;

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
