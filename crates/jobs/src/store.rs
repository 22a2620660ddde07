//! The store of jobs: a database of SQLite in a directory of this host, which any process of the user may open.
//!
//! **Invariants:** a state changes only by a [`Step`] that the job can take, in one transaction with its event and, at
//! its end, with its notifications. What has been committed has been flushed.

mod change;
mod copies;
mod notifications;
mod read;
mod rows;
mod step;
mod submit;
mod waiting;

use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::types::FromSql;
use rusqlite::{Connection, Params, Row, Transaction, TransactionBehavior};

use crate::error::StoreError;
use crate::place::{Place, private};

pub(crate) use copies::{COPY_ENDED, COPY_LEFT};

pub use change::{Answer, AttemptEvent, AttemptVerdict, Ending, Started};
pub use notifications::{Notification, NotificationState, NotifyMethod};
pub use read::{Page, Queued, QueuedJob, RunningJob};
pub use submit::Submitted;

/// The store.
#[derive(Debug)]
pub struct Store {
    connection: Connection,
    path: PathBuf,
}

impl Store {
    /// Opens the store of a place, which is made if it is not there.
    ///
    /// # Errors
    /// It cannot be read or written, is damaged, or has a schema of another version.
    pub fn open(place: &Place) -> Result<Self, StoreError> {
        let begun = Instant::now();
        loop {
            let opened = Self::open_once(place);
            // Of processes that open a new database together, SQLite may have some fail at once instead of waiting.
            if !matches!(opened, Err(StoreError::Locked { .. })) || begun.elapsed() >= LOCK_TIMEOUT
            {
                return opened;
            }
            // Two that wait equally long would meet again.
            std::thread::sleep(Duration::from_millis(
                1 + u64::from(begun.elapsed().subsec_nanos() % 8),
            ));
        }
    }

    fn open_once(place: &Place) -> Result<Self, StoreError> {
        let path = place.database();
        // What SQLite makes beside it, its log for one, has the database's mode.
        let create = private()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path);
        create.map_err(StoreError::io("open", &path))?;
        let connection = open(&path).map_err(|error| StoreError::database(&path, error))?;
        let mut store = Self { connection, path };
        match store.read(schema_version)? {
            VERSION => Ok(store),
            NO_SCHEMA => {
                store.create_schema()?;
                Ok(store)
            }
            found => Err(StoreError::OtherVersion {
                path: store.path,
                found,
                known: VERSION,
            }),
        }
    }

    fn create_schema(&mut self) -> Result<(), StoreError> {
        self.transact(|transaction| {
            // another process may have been first
            if schema_version(transaction)? == NO_SCHEMA {
                transaction.execute_batch(include_str!("store/schema.sql"))?;
                transaction.pragma_update(None, "user_version", VERSION)?;
            }
            Ok(Ok(()))
        })
    }

    /// Reads all of the database, and looks whether it hangs together.
    ///
    /// # Errors
    /// It does not.
    pub fn check(&self) -> Result<(), StoreError> {
        let found: String = self.value("PRAGMA quick_check(1)", ())?;
        if found == "ok" {
            return Ok(());
        }
        Err(StoreError::Damaged {
            path: self.path.clone(),
            why: found,
        })
    }

    /// Writes a copy of the store, as it is at this moment, into a new file, and flushes it.
    ///
    /// # Errors
    /// The file is there, or cannot be written.
    pub fn back_up(&self, file: &Path) -> Result<(), StoreError> {
        let made = private()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(file);
        let made = made.map_err(StoreError::io("create", file))?;
        let name = file.to_str().ok_or(io::ErrorKind::InvalidFilename);
        let name = name.map_err(StoreError::io("name in UTF-8", file))?;
        let copied = self.connection.execute("VACUUM INTO ?1", [name]);
        let copied = copied.map_err(|error| StoreError::database(file, error));
        if copied.is_err() {
            let _best_effort = std::fs::remove_file(file);
        }
        copied.and_then(|_| made.sync_all().map_err(StoreError::io("flush", file)))
    }

    /// Does what reads.
    fn read<T>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        work(&self.connection).map_err(|error| StoreError::database(&self.path, error))
    }

    /// The one value of a query.
    fn value<T: FromSql>(&self, sql: &str, parameters: impl Params) -> Result<T, StoreError> {
        self.read(|connection| connection.query_row(sql, parameters, |row| row.get(0)))
    }

    /// All rows of a query.
    fn rows<T>(
        &self,
        sql: &str,
        parameters: impl Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, StoreError> {
        self.read(|connection| {
            connection
                .prepare(sql)?
                .query_map(parameters, read)?
                .collect()
        })
    }

    /// Does what changes the store, as a whole or not at all: what returns an error changes nothing.
    fn transact<T>(
        &mut self,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let path = &self.path;
        // It is locked before anything is read, so that nothing changes between looking and writing.
        let begun = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate);
        let done = begun.and_then(|transaction| {
            let done = work(&transaction)?;
            if done.is_ok() {
                transaction.commit()?;
            }
            Ok(done)
        });
        done.map_err(|error| StoreError::database(path, error))?
    }
}

fn open(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(LOCK_TIMEOUT)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    // Each commit is flushed, not only each checkpoint.
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "foreign_keys", true)?;
    Ok(connection)
}

fn schema_version(connection: &Connection) -> rusqlite::Result<u32> {
    connection.query_row("PRAGMA user_version", (), |row| row.get(0))
}

/// The version of the schema.
const VERSION: u32 = 1;
/// The version of a database that SQLite has just made.
const NO_SCHEMA: u32 = 0;

/// How long a process waits for another's transaction, which takes milliseconds.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

#[cfg(test)]
pub(crate) mod tests;
