//! The job store: an SQLite database in a local directory. Any process of the user may open it.
//!
//! **Invariants:** a state changes only by a [`Step`] that the state allows. The change, its event and, at the end of a
//! job, its notifications are written in one transaction. A committed transaction has been flushed to disk.

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
use crate::place::{JobsDirectory, private_open_options};

pub(crate) use copies::{COPY_ENDED, COPY_LEFT};

pub use change::{AttemptEvent, AttemptVerdict, Ending, RequestResult, Started};
pub use notifications::{Notification, NotificationState, NotifyMethod};
pub use read::{Page, Queued, QueuedJob, RunningJob};
pub use submit::Submitted;

/// A connection to the job store.
#[derive(Debug)]
pub struct Store {
    connection: Connection,
    path: PathBuf,
}

impl Store {
    /// Opens the store in a directory of jobs and creates it if it does not exist.
    ///
    /// # Errors
    /// The store cannot be read or written, is damaged, or has a different schema version.
    pub fn open(place: &JobsDirectory) -> Result<Self, StoreError> {
        let begun = Instant::now();
        loop {
            let opened = Self::open_once(place);
            // If several processes create a database at the same time, SQLite may fail immediately instead of waiting.
            if !matches!(opened, Err(StoreError::Locked { .. })) || begun.elapsed() >= LOCK_TIMEOUT
            {
                return opened;
            }
            // Two processes that wait for the same time would collide again, so the wait is random.
            std::thread::sleep(Duration::from_millis(
                1 + u64::from(begun.elapsed().subsec_nanos() % 8),
            ));
        }
    }

    fn open_once(place: &JobsDirectory) -> Result<Self, StoreError> {
        let path = place.database();
        // SQLite gives its other files, such as the write-ahead log, the mode of the database.
        let create = private_open_options()
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
            // Another process may have created the schema already.
            if schema_version(transaction)? == NO_SCHEMA {
                transaction.execute_batch(include_str!("store/schema.sql"))?;
                transaction.pragma_update(None, "user_version", VERSION)?;
            }
            Ok(Ok(()))
        })
    }

    /// Reads the whole database and checks that it is consistent.
    ///
    /// # Errors
    /// The database cannot be read, or is damaged.
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

    /// Writes a snapshot of the store to a new file and flushes it.
    ///
    /// # Errors
    /// The file exists already, or cannot be written.
    pub fn back_up(&self, file: &Path) -> Result<(), StoreError> {
        let made = private_open_options()
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

    /// Runs `work`, which only reads.
    fn read<T>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        work(&self.connection).map_err(|error| StoreError::database(&self.path, error))
    }

    /// Returns the value of a query that yields a single value.
    fn value<T: FromSql>(&self, sql: &str, parameters: impl Params) -> Result<T, StoreError> {
        self.read(|connection| connection.query_row(sql, parameters, |row| row.get(0)))
    }

    /// Returns all rows of a query.
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

    /// Runs `work` in a transaction. The transaction is committed if `work` succeeds and rolled back if it fails.
    fn transact<T>(
        &mut self,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let path = &self.path;
        // Take the write lock before the first read, so that no other process changes the data between the read and the
        // write.
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
    // Flush the database at every commit and not only at checkpoints.
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "foreign_keys", true)?;
    Ok(connection)
}

fn schema_version(connection: &Connection) -> rusqlite::Result<u32> {
    connection.query_row("PRAGMA user_version", (), |row| row.get(0))
}

/// The schema version of this program.
const VERSION: u32 = 1;
/// The schema version of a database that SQLite has just created.
const NO_SCHEMA: u32 = 0;

/// How long a process waits while another process runs a transaction. A transaction takes milliseconds.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

#[cfg(test)]
pub(crate) mod tests;
