//! State that all requests share.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;
use tokio::sync::Semaphore;
use zmove_jobs::JobsDirectory;

use crate::hub::Hub;
use crate::options::SubmitOption;
use crate::stores::Stores;

/// Properties of the program and its host.
#[derive(Clone)]
pub struct Host {
    /// Path of this program, which the API runs to submit jobs and to plan transfers.
    pub program: PathBuf,
    /// The options of `zmove submit` that a client may set.
    pub options: Arc<[SubmitOption]>,
    /// The version of the program.
    pub version: String,
    /// Returns the status of this host's daemon, or the reason why it is unknown. The call may block.
    pub daemon: fn() -> Result<Value, String>,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host")
            .field("program", &self.program)
            .finish_non_exhaustive()
    }
}

/// State that all requests share.
#[derive(Clone, Debug)]
pub struct Api {
    pub(crate) place: JobsDirectory,
    pub(crate) host: Host,
    pub(crate) stores: Arc<Stores>,
    /// Permits for the processes that requests start.
    pub(crate) processes: Arc<Semaphore>,
    pub(crate) hub: Arc<Hub>,
}

impl Api {
    /// Returns the API for a directory of jobs.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn new(place: &JobsDirectory, host: Host) -> io::Result<Self> {
        Ok(Self {
            place: place.clone(),
            hub: Hub::new(place, host.daemon)?,
            host,
            stores: Stores::new(place.clone()),
            processes: Arc::new(Semaphore::new(PROCESSES_MAX)),
        })
    }
}

/// Maximum number of processes that requests run at the same time. Each process is a `zmove` that submits a job or
/// plans a transfer.
const PROCESSES_MAX: usize = 4;
