//! A pool of store connections for requests. One request at a time uses a connection, on a thread that may block on
//! storage.

use std::sync::{Arc, Mutex, PoisonError};

use axum::http::StatusCode;
use tokio::sync::Semaphore;
use zmove_jobs::{JobsDirectory, Store};

use crate::problem::Problem;

/// The pool of connections to one job store.
#[derive(Debug)]
pub(crate) struct Stores {
    place: JobsDirectory,
    idle: Mutex<Vec<Store>>,
    room: Semaphore,
}

impl Stores {
    pub(crate) fn new(place: JobsDirectory) -> Arc<Self> {
        Arc::new(Self {
            place,
            idle: Mutex::new(Vec::new()),
            room: Semaphore::new(STORES_MAX),
        })
    }

    /// Runs `work` with a store on a blocking thread.
    pub(crate) async fn with<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&JobsDirectory, &mut Store) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let _room = self
            .room
            .acquire()
            .await
            .expect("the semaphore is never closed");
        let stores = Arc::clone(self);
        let done = tokio::task::spawn_blocking(move || {
            let mut store = match stores.take() {
                Some(store) => store,
                None => Store::open(&stores.place)?,
            };
            let done = work(&stores.place, &mut store);
            stores
                .idle
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(store);
            done
        });
        let broken = |_| {
            Problem::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the request was not carried out",
            )
        };
        done.await.map_err(broken)?
    }

    fn take(&self) -> Option<Store> {
        self.idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop()
    }
}

/// Maximum number of requests that use the store at the same time. Further requests wait.
const STORES_MAX: usize = 4;
