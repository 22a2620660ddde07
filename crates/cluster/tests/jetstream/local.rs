//! Tests of the local broker, which a push starts if no broker is configured.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::Command;

use tempfile::TempDir;
use tokio::net::TcpStream;
use zmove_cluster::jetstream::{ARGUMENTS, Access, JetStream, LocalBroker, LocalServer, program};
use zmove_cluster::{NodeRole, WorkQueue};

use crate::lab::{Lab, data, next, put_all, settings};
use crate::ports::free_port;

struct Place {
    _directory: TempDir,
    broker: LocalBroker,
    access: Access,
}

impl Place {
    /// Returns `None` if there is no nats-server.
    fn new() -> Option<Self> {
        if !Lab::has_server() {
            return None;
        }
        let directory = TempDir::new().unwrap();
        let seed = LocalBroker::new_seed().unwrap();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let broker = LocalBroker {
            directory: directory.path().join("broker"),
            address,
            nkey: LocalBroker::nkey_of(&seed).unwrap(),
        };
        let access = Access {
            urls: vec![format!("nats://{address}")],
            credentials: Some(seed),
            ..Access::default()
        };
        Some(Self {
            _directory: directory,
            broker,
            access,
        })
    }

    async fn start(&self) -> std::io::Result<LocalServer> {
        self.broker.start(server).await
    }

    async fn is_there(&self) -> bool {
        TcpStream::connect(self.broker.address).await.is_ok()
    }
}

fn server() -> Command {
    let mut command = program();
    command.args(ARGUMENTS);
    command
}

#[tokio::test]
async fn a_local_broker_ends_with_its_push_and_begins_empty() {
    let Some(place) = Place::new() else { return };
    for _push in 0..2 {
        let server = place.start().await.unwrap();
        let head = JetStream::open(&place.access, settings(NodeRole::Head)).await;
        let head = head.unwrap();
        assert!(head.waiting().await.unwrap() == 0);
        put_all(&head, [data(1)]).await;
        assert_eq!(next(&head).await.item, data(1));
        drop(server);
        assert!(!place.is_there().await);
    }
}

#[tokio::test]
async fn a_local_broker_lets_the_nodes_of_its_cluster_in_and_nobody_else() {
    let Some(place) = Place::new() else { return };
    let _server = place.start().await.unwrap();
    let other_seed = LocalBroker::new_seed().unwrap();
    for credentials in [None, Some(other_seed)] {
        let access = Access {
            credentials,
            ..place.access.clone()
        };
        let refused = JetStream::open(&access, settings(NodeRole::Follower)).await;
        let why = refused.unwrap_err().to_string();
        assert!(why.contains("refuses this node"), "{why}");
    }
}

#[tokio::test]
async fn of_two_pushes_at_once_the_second_uses_the_broker_of_the_first() {
    let Some(place) = Place::new() else { return };
    let (one, two) = tokio::join!(place.start(), place.start());
    let (one, two) = (one.unwrap(), two.unwrap());
    let three = place.start().await.unwrap();
    drop(three);
    assert!(place.is_there().await, "it has started none");
    drop(one);
    drop(two);
    assert!(!place.is_there().await);
}

#[tokio::test]
async fn another_program_at_the_address_of_a_local_broker_is_reported() {
    let Some(place) = Place::new() else { return };
    let _other = TcpListener::bind(place.broker.address).unwrap();
    let error = place.start().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    let expected = format!("another program is listening on {}", place.broker.address);
    assert_eq!(error.to_string(), expected);
}

#[tokio::test]
async fn the_last_words_of_a_local_broker_that_does_not_start_are_reported() {
    let Some(place) = Place::new() else { return };
    let command = || {
        let mut command = Command::new("sh");
        command.args(["-c", "echo first; echo 'no such thing' >&2; exit 7"]);
        command
    };
    let error = place.broker.start(command).await.unwrap_err().to_string();
    assert!(error.starts_with("exit status: 7 (log in '"), "{error}");
    assert!(
        error.ends_with("nats-server.log'): no such thing"),
        "{error}"
    );
}
