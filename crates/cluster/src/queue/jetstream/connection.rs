//! The connection to a broker: where it is, who asks, and whether it is there.
//!
//! **Invariant:** a connection that was there once is made again for as long as it is wanted.

use std::error::Error as _;
use std::io::Error;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::{Context, ContextBuilder};
use async_nats::{Client, ClientError, ConnectErrorKind, Event, ServerAddr, rustls};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use zmove_types::Lock;

use super::access::{ANSWER_MAX, Access};
use super::answers::BrokerError;
use crate::error::{Hindrance, WorkError};

/// Whether the broker can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokerState {
    /// The broker is there.
    Ready,
    /// The broker is there, and has items of which none was taken for a while.
    Silent,
    /// The broker cannot be reached, and is dialled again.
    Lost,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) client: Client,
    pub(super) context: Context,
    /// The broker's addresses, for messages.
    pub(super) broker: String,
    told: Arc<BrokerNews>,
}

/// What has been told of the broker.
#[derive(Debug)]
struct BrokerNews {
    broker: String,
    state: watch::Sender<BrokerState>,
    refusal: Lock<Option<String>>,
    hindrance: Lock<Option<Hindrance>>,
}

impl Connection {
    pub(super) async fn open(access: &Access) -> Result<Self, WorkError> {
        let failed = |source| WorkError::Queue {
            operation: "connect to the broker of the job",
            source,
        };
        let urls: Result<Vec<ServerAddr>, _> = access.urls.iter().map(|url| url.parse()).collect();
        let urls = urls.map_err(|error| failed(error.into()))?;
        let broker = access.urls.join(", ");
        let told = Arc::new(BrokerNews {
            broker: broker.clone(),
            state: watch::Sender::new(BrokerState::Lost),
            refusal: Lock::default(),
            hindrance: Lock::default(),
        });
        let mut refusals = 0;
        let client = loop {
            let options = access.options().map_err(|error| failed(error.into()))?;
            let options = options.event_callback({
                let told = Arc::clone(&told);
                move |event| {
                    let told = Arc::clone(&told);
                    async move { told.hear(event) }
                }
            });
            match options.connect(urls.clone()).await {
                Ok(client) => break client,
                // a server that reads its configuration again refuses whoever is about to say who it is
                Err(error) if is_refusal(&error) && refusals < REFUSALS_MAX => {
                    refusals += 1;
                    sleep(REFUSED_PAUSE).await;
                }
                Err(error) => {
                    let why = hindrance(&broker, &error);
                    return Err(why.map_or_else(|| failed(error.into()), Into::into));
                }
            }
        };
        told.state.send_replace(BrokerState::Ready);
        let context = ContextBuilder::new()
            .timeout(ANSWER_MAX)
            .max_ack_inflight(ITEMS_IN_FLIGHT_MAX)
            .build(client.clone());
        Ok(Self {
            client,
            context,
            broker,
            told,
        })
    }

    /// What is known of the broker. A connection that has been made anew is a change.
    pub(super) fn state(&self) -> watch::Receiver<BrokerState> {
        self.told.state.subscribe()
    }

    /// Turns one state into another, if it is the present one.
    pub(super) fn turn(&self, from: BrokerState, to: BrokerState) {
        self.told.state.send_if_modified(|state| {
            let is_present = *state == from;
            if is_present {
                *state = to;
            }
            is_present
        });
    }

    /// Returns after a while, or when the broker's state changes; a broker that is away is not asked in vain, but
    /// waited for, so long at most.
    pub(super) async fn pause(&self, away_max: Duration) {
        let mut state = self.state();
        if self.is_lost() {
            let _back_or_not = timeout(
                away_max,
                state.wait_for(|state| *state != BrokerState::Lost),
            )
            .await;
        } else {
            let _changed_or_not = timeout(AGAIN_AFTER, state.changed()).await;
        }
    }

    pub(super) fn is_lost(&self) -> bool {
        *self.told.state.borrow() == BrokerState::Lost
    }

    /// Fails where the broker is away: a request would wait for it, and for its own answer after that.
    pub(super) fn check(&self) -> Result<(), BrokerError> {
        match self.hindrance() {
            _ if !self.is_lost() => Ok(()),
            Some(hindrance) => Err(BrokerError::Unanswered(hindrance.into())),
            None => Err(BrokerError::Unanswered(LOST.into())),
        }
    }

    /// Why whoever listens at the broker's address is of no use, if the broker is lost and somebody does.
    pub(super) fn hindrance(&self) -> Option<Hindrance> {
        self.told
            .hindrance
            .lock()
            .clone()
            .filter(|_| self.is_lost())
    }

    /// Why the server has last refused something that it does not answer, as what is not allowed.
    pub(super) fn refusal(&self) -> Option<String> {
        self.told.refusal.lock().clone()
    }
}

impl BrokerNews {
    fn hear(&self, event: Event) {
        match event {
            Event::Connected => {
                self.state.send_replace(BrokerState::Ready);
                *self.hindrance.lock() = None;
            }
            // an attempt to connect again has failed
            Event::ClientError(ClientError::Other(why)) => {
                let is_refusal = why == ConnectErrorKind::AuthorizationViolation.to_string();
                *self.hindrance.lock() = is_refusal.then(|| Hindrance::Refused {
                    broker: self.broker.clone(),
                    why,
                });
            }
            Event::Disconnected | Event::Closed => drop(self.state.send_replace(BrokerState::Lost)),
            Event::ServerError(error) => *self.refusal.lock() = Some(error.to_string()),
            _ => {}
        }
    }
}

fn is_refusal(error: &async_nats::ConnectError) -> bool {
    error.kind() == ConnectErrorKind::AuthorizationViolation
}

/// Why who listens at the broker's address is of no use, where that is why no connection has come about.
fn hindrance(broker: &str, error: &async_nats::ConnectError) -> Option<Hindrance> {
    let refused = |why| {
        Some(Hindrance::Refused {
            broker: broker.to_owned(),
            why,
        })
    };
    if is_refusal(error) {
        return refused(error.kind().to_string());
    }
    let tls = error
        .source()?
        .downcast_ref::<Error>()?
        .get_ref()?
        .downcast_ref::<rustls::Error>()?;
    match tls {
        rustls::Error::AlertReceived(_) => refused(tls.to_string()),
        rustls::Error::InvalidCertificate(_) => Some(Hindrance::Another(format!(
            "at {broker} listens a server for whose certificate nobody vouches here: {tls}"
        ))),
        _ => None,
    }
}

const LOST: &str = "it cannot be reached";

/// The maximum number of items on their way to the broker.
const ITEMS_IN_FLIGHT_MAX: usize = 64;

/// How often a refused connection is tried again.
const REFUSALS_MAX: u32 = 5;
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// How often a broker is asked again; sooner if its state changes.
const AGAIN_AFTER: Duration = Duration::from_millis(500);
