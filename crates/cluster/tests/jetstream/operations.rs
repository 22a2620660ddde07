//! Tests of a broker with three servers, using the configuration from `docs/OPERATIONS.md`.

use std::fs;
use std::process::{Child, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::{sleep, timeout};
use zmove_cluster::jetstream::{Access, JetStream, LocalBroker, program};
use zmove_cluster::{NodeRole, WorkQueue};

use crate::lab::{Lab, data, next, put_all, settings};
use crate::ports::free_port;

/// A server, which is killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Returns the documented configuration for the server `n1`.
fn documented() -> String {
    let text = fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/OPERATIONS.md"
    ))
    .unwrap();
    let from = text
        .split("`/etc/nats-server.conf` on `n1`")
        .nth(1)
        .unwrap();
    from.split("```\n").nth(1).unwrap().to_owned()
}

/// Returns the configuration for one of three servers on the loopback address.
fn configuration(of: usize, clients: [u16; 3], routes: [u16; 3], nkey: &str) -> String {
    let mut text = documented();
    // The first occurrences belong to the server itself.
    text = text.replacen("server_name: n1", &format!("server_name: n{}", of + 1), 1);
    text = text.replacen("n1:4222", &format!("127.0.0.1:{}", clients[of]), 1);
    text = text.replacen("n1:6222", &format!("127.0.0.1:{}", routes[of]), 1);
    for (number, port) in routes.into_iter().enumerate() {
        text = text.replace(
            &format!("n{}:6222", number + 1),
            &format!("127.0.0.1:{port}"),
        );
    }
    text.replace("PUBLIC_NKEY", nkey)
        .replace("ROUTE_PASSWORD", "secret")
        .replace("/var/lib/nats", &format!("store{of}"))
}

#[tokio::test]
async fn three_servers_by_the_documented_configuration_are_a_broker() {
    if !Lab::has_server() {
        return;
    }
    assert!(documented().lines().count() <= 10, "it is short");
    let directory = TempDir::new().unwrap();
    let [clients, routes] = [(); 2].map(|()| [(); 3].map(|()| free_port()));
    let seed = LocalBroker::new_seed().unwrap();
    let nkey = LocalBroker::nkey_of(&seed).unwrap();
    let start = |of: usize| {
        let file = directory.path().join(format!("n{of}.conf"));
        fs::write(&file, configuration(of, clients, routes, &nkey)).unwrap();
        let mut command = program();
        command.current_dir(directory.path()).arg("-c").arg(file);
        Running(command.stderr(Stdio::null()).spawn().unwrap())
    };
    let _servers = [0, 1, 2].map(start);
    let access = Access {
        urls: clients
            .map(|port| format!("nats://127.0.0.1:{port}"))
            .into(),
        credentials: Some(seed),
        ..Access::default()
    };
    // The servers must elect a leader first.
    let opening = async {
        loop {
            match JetStream::open(&access, settings(NodeRole::Head)).await {
                Ok(head) => return head,
                Err(_not_yet) => sleep(Duration::from_millis(50)).await,
            }
        }
    };
    let head = timeout(Duration::from_secs(60), opening).await.unwrap();
    put_all(&head, [data(1)]).await;
    let taken = next(&head).await;
    assert_eq!(taken.item, data(1));
    head.done(taken).await.unwrap();
    // Each replica removes the item at a different time.
    let idle = async {
        while head.waiting().await.unwrap() > 0 {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(60), idle).await.unwrap();
}
