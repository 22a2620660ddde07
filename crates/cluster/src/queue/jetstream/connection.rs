//! The connection to a broker, its state, and the objects of all jobs there.
//!
//! **Invariant:** a connection that was once established is restored whenever it is lost.

use std::error::Error as _;
use std::io::Error;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::kv::Store;
use async_nats::jetstream::stream::{Config, DiscardPolicy, StorageType, Stream};
use async_nats::jetstream::{Context, ContextBuilder};
use async_nats::{Client, ClientError, ConnectErrorKind, Event, ServerAddr, rustls};
use futures_util::TryFutureExt;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use zmove_types::Lock;

use super::access::{ANSWER_MAX, Access};
use super::answers::BrokerError;
use crate::error::{BrokerMismatch, WorkError};

/// The state of the connection to a broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokerState {
    /// The broker is connected.
    Ready,
    /// The broker is connected and has items, but no item has been taken for a while.
    Silent,
    /// The broker cannot be reached. Reconnecting is in progress.
    Lost,
}

/// A connection to a broker.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) client: Client,
    pub(super) context: Context,
    pub(super) status: Arc<BrokerStatus>,
}

/// The reported state and errors of a broker.
#[derive(Debug)]
pub(super) struct BrokerStatus {
    /// Addresses of the broker, for messages.
    pub(super) broker: String,
    state: watch::Sender<BrokerState>,
    refusal: Lock<Option<String>>,
    server_mismatch: Lock<Option<BrokerMismatch>>,
}

impl Connection {
    pub(super) async fn open(access: &Access) -> Result<Self, WorkError> {
        let failed = |source| WorkError::Queue {
            operation: "connect to the broker of the job",
            source,
        };
        let urls: Result<Vec<ServerAddr>, _> = access.urls.iter().map(|url| url.parse()).collect();
        let urls = urls.map_err(|error| failed(error.into()))?;
        let status = Arc::new(BrokerStatus {
            broker: access.urls.join(", "),
            state: watch::Sender::new(BrokerState::Lost),
            refusal: Lock::default(),
            server_mismatch: Lock::default(),
        });
        let mut refusals = 0;
        let client = loop {
            let options = access.options().map_err(|error| failed(error.into()))?;
            let options = options.event_callback({
                let status = Arc::clone(&status);
                move |event| {
                    let status = Arc::clone(&status);
                    async move { status.hear(event) }
                }
            });
            match options.connect(urls.clone()).await {
                Ok(client) => break client,
                // A server that is reloading its configuration refuses clients before they authenticate.
                Err(error) if is_refusal(&error) && refusals < REFUSALS_MAX => {
                    refusals += 1;
                    sleep(REFUSED_PAUSE).await;
                }
                Err(error) => {
                    let why = status.mismatch_of(&error);
                    return Err(why.map_or_else(|| failed(error.into()), Into::into));
                }
            }
        };
        status.state.send_replace(BrokerState::Ready);
        let context = ContextBuilder::new()
            .timeout(ANSWER_MAX)
            .max_ack_inflight(ITEMS_IN_FLIGHT_MAX)
            .build(client.clone());
        Ok(Self {
            client,
            context,
            status,
        })
    }

    /// Returns a receiver for the state of the broker. A restored connection counts as a change.
    pub(super) fn state(&self) -> watch::Receiver<BrokerState> {
        self.status.state.subscribe()
    }

    /// Changes the state to `to` if the state is `from`.
    pub(super) fn change_state(&self, from: BrokerState, to: BrokerState) {
        self.status.state.send_if_modified(|state| {
            let is_present = *state == from;
            if is_present {
                *state = to;
            }
            is_present
        });
    }

    /// Waits before another request until the state changes: up to `away_max` if the broker cannot be reached, and
    /// otherwise for a short time.
    pub(super) async fn pause(&self, away_max: Duration) {
        let mut state = self.state();
        let most = if self.is_lost() {
            away_max
        } else {
            AGAIN_AFTER
        };
        let _changed_or_not = timeout(most, state.changed()).await;
    }

    pub(super) fn is_lost(&self) -> bool {
        *self.status.state.borrow() == BrokerState::Lost
    }

    /// Fails if the broker cannot be reached. Without this check, a request would first wait for the connection and
    /// then for its own answer.
    pub(super) fn check(&self) -> Result<(), BrokerError> {
        match self.server_mismatch() {
            _ if !self.is_lost() => Ok(()),
            Some(server_mismatch) => Err(BrokerError::Unanswered(server_mismatch.into())),
            None => Err(BrokerError::Unanswered(LOST.into())),
        }
    }

    /// Returns the reason why the server at the broker's address cannot be used, if the connection is lost and a server
    /// was reached.
    pub(super) fn server_mismatch(&self) -> Option<BrokerMismatch> {
        self.status
            .server_mismatch
            .lock()
            .clone()
            .filter(|_| self.is_lost())
    }

    /// Creates a stream with three replicas, or with one if the broker has too few servers.
    pub(super) async fn make_stream(&self, config: Config) -> Result<Stream, BrokerError> {
        let make = |num_replicas| {
            self.context.create_stream(Config {
                num_replicas,
                ..config.clone()
            })
        };
        if self.client.server_info().cluster.is_some() {
            match make(3).err_into().await {
                Err(BrokerError::Refused(_)) => {}
                made => return made,
            }
        }
        Ok(make(1).await?)
    }

    /// Returns a bucket. Creates it if the broker does not have it.
    pub(super) async fn bucket(
        &self,
        bucket: &str,
        max_age: Duration,
        storage: StorageType,
    ) -> Result<Store, BrokerError> {
        self.check()?;
        if let Ok(found) = self.context.get_key_value(bucket).await {
            return Ok(found);
        }
        // `async_nats` cannot create a bucket on nats-server 2.9, because it cannot parse that server's account
        // information.
        self.make_stream(Config {
            name: format!("KV_{bucket}"),
            subjects: vec![format!("$KV.{bucket}.>")],
            max_messages_per_subject: 1,
            discard: DiscardPolicy::New,
            allow_rollup: true,
            allow_direct: true,
            max_age,
            storage,
            ..Config::default()
        })
        .await?;
        Ok(self.context.get_key_value(bucket).await?)
    }

    /// Returns the last error that the server reported without answering a request, such as a missing permission.
    pub(super) fn refusal(&self) -> Option<String> {
        self.status.refusal.lock().clone()
    }
}

impl BrokerStatus {
    fn hear(&self, event: Event) {
        match event {
            Event::Connected => {
                self.state.send_replace(BrokerState::Ready);
                *self.server_mismatch.lock() = None;
            }
            // An attempt to reconnect failed.
            Event::ClientError(ClientError::Other(why)) => {
                let is_refusal = why == ConnectErrorKind::AuthorizationViolation.to_string();
                *self.server_mismatch.lock() = is_refusal.then(|| self.refused(why));
            }
            Event::Disconnected | Event::Closed => drop(self.state.send_replace(BrokerState::Lost)),
            Event::ServerError(error) => *self.refusal.lock() = Some(error.to_string()),
            _ => {}
        }
    }

    fn refused(&self, why: String) -> BrokerMismatch {
        let broker = &self.broker;
        BrokerMismatch::Refused(format!("the broker {broker} refuses this node: {why}"))
    }

    /// Returns the reason why the server at the broker's address cannot be used, if that is why the connection failed.
    fn mismatch_of(&self, error: &async_nats::ConnectError) -> Option<BrokerMismatch> {
        if is_refusal(error) {
            return Some(self.refused(error.kind().to_string()));
        }
        let tls = error
            .source()?
            .downcast_ref::<Error>()?
            .get_ref()?
            .downcast_ref::<rustls::Error>()?;
        match tls {
            rustls::Error::AlertReceived(_) => Some(self.refused(tls.to_string())),
            rustls::Error::InvalidCertificate(_) => Some(BrokerMismatch::Another(format!(
                "the server at {} has a certificate that this host does not trust: {tls}",
                self.broker
            ))),
            _ => None,
        }
    }
}

fn is_refusal(error: &async_nats::ConnectError) -> bool {
    error.kind() == ConnectErrorKind::AuthorizationViolation
}

const LOST: &str = "the broker cannot be reached";

/// Maximum number of items in flight to the broker.
const ITEMS_IN_FLIGHT_MAX: usize = 64;

/// Maximum number of retries after a refused connection.
const REFUSALS_MAX: u32 = 5;
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// Interval between requests to a broker. A change of its state ends the wait earlier.
const AGAIN_AFTER: Duration = Duration::from_millis(500);
