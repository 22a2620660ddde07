//! The connection to a broker: where it is, who asks, and whether it is there.
//!
//! **Invariant:** a connection that was there once is made again for as long as it is wanted.

use std::error::Error as _;
use std::fs;
use std::io::{Error, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::{self, Context, ContextBuilder};
use async_nats::{
    Client, ClientError, ConnectErrorKind, ConnectOptions, Event, ServerAddr, rustls,
};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use zmove_types::Lock;

use super::listener::Listener;
use crate::error::{Hindrance, WorkError};

/// Where a broker is, and who asks.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// The addresses of its servers, as `nats://HOST:PORT`, or `tls://HOST:PORT`. No other is taken from a server.
    pub urls: Vec<String>,
    /// A file with the seed of this node's nkey, for its owner alone.
    pub nkey_seed: Option<PathBuf>,
    /// A file with the certificates (PEM) of who vouches for the servers; those of this host if there is none.
    pub authority: Option<PathBuf>,
    /// This node's certificate, for servers that ask for one.
    pub certificate: Option<NodeCertificate>,
    /// The name of the broker, where zmove has made it: no other server is taken for it.
    pub name: Option<String>,
}

/// Files with a certificate and its private key, both PEM.
#[derive(Clone, Debug)]
pub struct NodeCertificate {
    /// The certificate, with those that lead to its authority.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

/// Whether there is a broker that has the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokerState {
    /// The broker is there.
    Ready,
    /// The broker cannot be reached, and is dialled again.
    Lost,
    /// The broker is there and knows nothing of the job: the head has not begun, or the broker has lost what it had.
    Empty,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) client: Client,
    pub(super) context: Context,
    /// The broker's addresses, for messages.
    pub(super) broker: String,
    /// The public part of this node's nkey.
    pub(super) nkey: Option<String>,
    told: Arc<BrokerNews>,
}

/// What has been told of the broker.
#[derive(Debug)]
struct BrokerNews {
    urls: Vec<ServerAddr>,
    name: Option<String>,
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
            urls: urls.clone(),
            name: access.name.clone(),
            broker: broker.clone(),
            state: watch::Sender::new(BrokerState::Lost),
            refusal: Lock::default(),
            hindrance: Lock::default(),
        });
        if let Some(another) = told.another().await {
            return Err(another.into());
        }
        let mut refusals = 0;
        let (client, nkey) = loop {
            let (options, nkey) = access.options().map_err(|error| failed(error.into()))?;
            let options = options.event_callback({
                let told = Arc::clone(&told);
                move |event| {
                    let told = Arc::clone(&told);
                    async move { told.hear(event).await }
                }
            });
            match options.connect(urls.clone()).await {
                Ok(client) => break (client, nkey),
                // a server that reads its configuration again refuses whoever is about to say who it is
                Err(error) if is_refusal(&error) && refusals < REFUSALS_MAX => {
                    refusals += 1;
                    sleep(REFUSED_PAUSE).await;
                }
                Err(error) => {
                    let why = told.or_no_server(hindrance(&broker, &error)).await;
                    return Err(why.map_or_else(|| failed(error.into()), Into::into));
                }
            }
        };
        told.state.send_replace(BrokerState::Ready);
        let context = ContextBuilder::new()
            .timeout(ANSWER_MAX)
            .build(client.clone());
        Ok(Self {
            client,
            context,
            broker,
            nkey,
            told,
        })
    }

    /// What is known of the broker. A connection that has been made anew is a change.
    pub(super) fn state(&self) -> watch::Receiver<BrokerState> {
        self.told.state.subscribe()
    }

    /// Tells whether a broker that answers has the job.
    pub(super) fn tell(&self, news: BrokerState) {
        self.told.state.send_if_modified(|state| {
            let changes = *state != BrokerState::Lost && *state != news;
            if changes {
                *state = news;
            }
            changes
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
    async fn hear(&self, event: Event) {
        match event {
            Event::Connected => {
                let another = self.another().await;
                if another.is_none() {
                    self.state.send_replace(BrokerState::Ready);
                }
                *self.hindrance.lock() = another;
            }
            // an attempt to connect again has failed
            Event::ClientError(ClientError::Other(why)) => {
                let is_refusal = why == ConnectErrorKind::AuthorizationViolation.to_string();
                let refused = is_refusal.then(|| Hindrance::Refused {
                    broker: self.broker.clone(),
                    why,
                });
                let hindrance = self.or_no_server(self.another().await.or(refused)).await;
                *self.hindrance.lock() = hindrance;
            }
            Event::Disconnected | Event::Closed => drop(self.state.send_replace(BrokerState::Lost)),
            Event::ServerError(error) => *self.refusal.lock() = Some(error.to_string()),
            _ => {}
        }
    }

    /// What listens in place of the broker, if anything surely does and the broker's name is known.
    async fn another(&self) -> Option<Hindrance> {
        let name = self.name.as_deref()?;
        self.in_place(|listener| listener.is_another_than(name))
            .await
    }

    /// What is known to hinder; else, as no connection has come about, what listens there and does not speak as a NATS
    /// server does.
    async fn or_no_server(&self, known: Option<Hindrance>) -> Option<Hindrance> {
        if known.is_some() {
            return known;
        }
        self.in_place(|listener| matches!(listener, Listener::Program(_)))
            .await
    }

    async fn in_place(&self, is_of_no_use: impl Fn(&Listener) -> bool) -> Option<Hindrance> {
        for url in &self.urls {
            let (host, port) = (url.host(), url.port());
            let listener = Listener::at((host, port)).await;
            if let Some(another) = listener.filter(&is_of_no_use) {
                let address = url
                    .as_url_str()
                    .trim_end_matches('/')
                    .rsplit('/')
                    .next()
                    .unwrap_or(host);
                return Some(Hindrance::Another(another.in_place(address)));
            }
        }
        None
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

impl Access {
    /// How a connection is made, and the public part of the nkey that is shown there.
    fn options(&self) -> Result<(ConnectOptions, Option<String>), Error> {
        let mut nkey = None;
        let mut options = ConnectOptions::new()
            .name("zmove")
            .connection_timeout(ANSWER_MAX)
            .ping_interval(PING_EVERY)
            // addresses come from whoever has started the job
            .ignore_discovered_servers();
        if let Some(path) = &self.nkey_seed {
            let seed = read_seed(path)?;
            let key = nkeys::KeyPair::from_seed(&seed).map_err(|error| within(path, &error))?;
            options = options
                .nkey(seed)
                .custom_inbox_prefix(inbox(&key.public_key()));
            nkey = Some(key.public_key());
        }
        if let Some(path) = &self.authority {
            fs::metadata(path).map_err(|error| within(path, &error))?;
            options = options
                .add_root_certificates(path.clone())
                .require_tls(true);
        }
        if let Some(NodeCertificate { certificate, key }) = &self.certificate {
            options = options
                .add_client_certificate(certificate.clone(), key.clone())
                .require_tls(true);
        }
        Ok((options, nkey))
    }
}

/// Whether this is the address of a broker: `nats://HOST:PORT` or `tls://HOST:PORT`.
#[must_use]
pub fn check_address(url: &str) -> bool {
    let rest = url
        .strip_prefix("nats://")
        .or_else(|| url.strip_prefix("tls://"));
    let has_port = rest.is_some_and(|rest| {
        let (host, port) = rest.rsplit_once(':').unwrap_or_default();
        !host.is_empty()
            && port.parse::<u16>().is_ok_and(|port| port > 0)
            && !rest.contains(['/', '@', '?'])
    });
    has_port && url.parse::<ServerAddr>().is_ok()
}

/// Where a node gets its answers: a place of its own, so that no other node may listen there.
pub(super) fn inbox(public_key: &str) -> String {
    format!("_INBOX.{public_key}")
}

fn read_seed(path: &Path) -> Result<String, Error> {
    let metadata = fs::metadata(path).map_err(|error| within(path, &error))?;
    if metadata.mode() & 0o077 != 0 {
        return Err(within(path, &"others than its owner may read it"));
    }
    Ok(fs::read_to_string(path)
        .map_err(|error| within(path, &error))?
        .trim()
        .to_owned())
}

fn within(path: &Path, error: &dyn std::fmt::Display) -> Error {
    Error::new(
        ErrorKind::InvalidInput,
        format!("{}: {error}", path.display()),
    )
}

const LOST: &str = "it cannot be reached";

/// How long a broker that is there may take to answer.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(5);

/// After two of these without an answer a connection is made anew.
const PING_EVERY: Duration = Duration::from_secs(5);
/// How often a refused connection is tried again.
const REFUSALS_MAX: u32 = 5;
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// How often a broker is asked again; sooner if its state changes.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

/// Why a request to the broker was not done.
#[derive(Debug)]
pub(super) enum BrokerError {
    /// The broker does not have what was asked for.
    Missing,
    /// The job is over, or this epoch of it.
    Over,
    /// The broker does not want to.
    Refused(jetstream::Error),
    /// The broker could not be asked, or has not answered; later it may.
    Unanswered(Box<dyn std::error::Error + Send + Sync>),
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_program_that_says_nothing_is_told_from_a_broker_that_is_not_there() {
        let listens = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listens.local_addr().unwrap();
        for name in [None, Some("zmove-1".to_owned())] {
            let access = Access {
                urls: vec![format!("nats://{address}")],
                name,
                ..Access::default()
            };
            let Err(WorkError::Hindered(silent)) = Connection::open(&access).await else {
                panic!("it listens")
            };
            assert!(
                silent
                    .to_string()
                    .starts_with(&format!("at {address} listens another program")),
                "{silent}"
            );
        }
        // A socket that does not listen refuses connections.
        let refusing = TcpSocket::new_v4().unwrap();
        refusing.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let access = Access {
            urls: vec![format!("nats://{}", refusing.local_addr().unwrap())],
            ..Access::default()
        };
        assert!(matches!(
            Connection::open(&access).await,
            Err(WorkError::Queue { .. })
        ));
    }
}
