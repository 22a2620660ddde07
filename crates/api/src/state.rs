//! What all requests share.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;
use tokio::sync::Semaphore;
use zmove_jobs::Place;

use crate::hub::Hub;
use crate::options::SubmitOption;
use crate::stores::Stores;

/// What the program tells the API of itself and of the host.
#[derive(Clone)]
pub struct Host {
    /// This program, which is run to submit a job and to preview one.
    pub program: PathBuf,
    /// The options of `zmove submit` that a client may set.
    pub options: Arc<[SubmitOption]>,
    /// The release.
    pub version: String,
    /// The status of this host's daemon, or why it is not known. It may block.
    pub daemon: fn() -> Result<Value, String>,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host")
            .field("program", &self.program)
            .finish_non_exhaustive()
    }
}

/// What all requests share.
#[derive(Clone, Debug)]
pub struct Api {
    pub(crate) place: Place,
    pub(crate) host: Host,
    pub(crate) stores: Arc<Stores>,
    /// Held by each process that a request has run.
    pub(crate) processes: Arc<Semaphore>,
    pub(crate) hub: Arc<Hub>,
}

impl Api {
    /// The API of the jobs of a place.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn new(place: &Place, host: Host) -> io::Result<Self> {
        Ok(Self {
            place: place.clone(),
            hub: Hub::new(place, host.daemon)?,
            host,
            stores: Stores::new(place.clone()),
            processes: Arc::new(Semaphore::new(PROCESSES_MAX)),
        })
    }
}

/// How many processes requests run at once: each is a `zmove` that takes a job or looks what there is to do.
const PROCESSES_MAX: usize = 4;
