//! Two identities at one daemon: transfers belong to the key that opened them.

use tokio::io::AsyncReadExt;
use tokio::runtime::Runtime;
use zmove_transport::{Access, AuthorizedKeys, Channel, Grant, Identity, TransportChoice};
use zmove_types::{LaneId, TransferId};
use zmove_wire::{Greeting, Role};

use crate::support::harness::{PATIENCE, Site, has_program, skip};
use crate::support::host;
use crate::support::tree::{names, paint};

const TRANSFER: TransferId = TransferId([3; 16]);
const TRANSPORTS: [TransportChoice; 2] = [TransportChoice::Tcp, TransportChoice::Quic];

/// A daemon that authorizes the client as `tester`, and `eve`, who may write as well.
fn site() -> (Site, Identity, Identity) {
    let site = Site::daemon();
    let [tester, eve] =
        ["client", "eve"].map(|home| Identity::load_or_create(&site.path(home)).unwrap());
    let roots = vec![site.target().canonicalize().unwrap()];
    let grant = Grant::new(eve.fingerprint(), "eve", roots, Access::WriteOnly);
    AuthorizedKeys::allow(&site.path("server"), grant).unwrap();
    (site, tester, eve)
}

/// Dials as `identity` and sends a greeting for the transfer.
async fn greet(
    site: &Site,
    identity: &Identity,
    transport: TransportChoice,
    role: Role,
) -> Channel {
    let greeting = Greeting::new(role, TRANSFER);
    host::greet(site.the_daemon(), identity, transport, greeting).await
}

/// Returns the bytes that the daemon sends before it closes the connection.
async fn ended(mut channel: Channel) -> Vec<u8> {
    let mut said = Vec::new();
    let read = tokio::time::timeout(PATIENCE, channel.read_to_end(&mut said)).await;
    let _closed_or_reset = read.expect("the daemon ends the connection");
    said
}

/// Opens a control connection and waits for the daemon's greeting, which means that its transfer is registered.
async fn open(site: &Site, identity: &Identity, transport: TransportChoice) -> Channel {
    let mut control = greet(site, identity, transport, Role::Control).await;
    let mut greeting = [0; Greeting::BYTES];
    tokio::time::timeout(PATIENCE, control.read_exact(&mut greeting))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(Greeting::decode(&greeting).unwrap().transfer, TRANSFER);
    control
}

/// The other client knows the transfer's id and a lane's number and has an authorized key.
#[test]
fn a_lane_presented_by_another_identity_finds_no_transfer() {
    for transport in TRANSPORTS {
        let (site, tester, eve) = site();
        Runtime::new().unwrap().block_on(async {
            let _control = open(&site, &tester, transport).await;
            let lane = greet(&site, &eve, transport, Role::Lane(LaneId(0))).await;
            assert_eq!(ended(lane).await, b"");
        });
        site.the_daemon()
            .wait_for_log("a lane for a transfer that its key has not opened");
        assert!(names(&site.target()).is_empty());
    }
}

/// Each key has separate transfer ids: the other key's transfer neither ends nor is taken over.
#[test]
fn the_id_of_another_users_transfer_opens_a_separate_transfer() {
    for transport in TRANSPORTS {
        let (site, tester, eve) = site();
        Runtime::new().unwrap().block_on(async {
            let theirs = open(&site, &tester, transport).await;
            let own = open(&site, &eve, transport).await;
            drop(own);
            site.the_daemon().wait_for_log("broken off by eve");
            // The first transfer still exists, so its key cannot open it again.
            let second = greet(&site, &tester, transport, Role::Control).await;
            assert_eq!(ended(second).await, b"");
            site.the_daemon()
                .wait_for_log("a transfer with that id is already running");
            drop(theirs);
        });
        site.the_daemon().wait_for_log("broken off by tester");
    }
}

#[test]
fn an_unknown_key_is_refused_on_every_connection_and_transport() {
    for transport in TRANSPORTS {
        let (site, tester, _eve) = site();
        let stranger = Identity::load_or_create(&site.path("stranger")).unwrap();
        Runtime::new().unwrap().block_on(async {
            let _control = open(&site, &tester, transport).await;
            for role in [Role::Control, Role::Lane(LaneId(0)), Role::Fetch] {
                let said = ended(greet(&site, &stranger, transport, role).await).await;
                let greeting = Greeting::decode(said.first_chunk().unwrap()).unwrap();
                assert_eq!(greeting.transfer, TransferId([0; 16]));
                let text = String::from_utf8_lossy(&said[Greeting::BYTES..]).into_owned();
                assert!(text.contains("this key is not known here"), "{text}");
            }
        });
        site.the_daemon()
            .wait_for_log(&format!("unknown key {}", stranger.fingerprint()));
    }
}

#[test]
fn tls_1_2_of_another_library_is_refused() {
    if !has_program("openssl") {
        return skip("openssl is missing: no other TLS library to try");
    }
    let (site, ..) = site();
    paint(site.source().join("f"), 10);
    let (address, key) = (
        site.the_daemon().address.to_string(),
        site.path("client/key.pem"),
    );
    let key = key.to_str().unwrap();
    let connect = |version: &str| {
        let words = [
            "s_client", "-connect", &address, version, "-alpn", "zmove/1", "-cert", key, "-key",
            key,
        ];
        let mut openssl = std::process::Command::new("openssl");
        let output = openssl
            .args(words)
            .stdin(std::process::Stdio::null())
            .output()
            .unwrap();
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let said = connect("-tls1_2");
    assert!(said.contains("alert protocol version"), "{said}");
    site.the_daemon()
        .wait_for_log("it speaks TLS without the zmove protocol");
    // The success with TLS 1.3 shows that all other settings were correct.
    let said = connect("-tls1_3");
    assert!(said.contains("ALPN protocol: zmove/1"), "{said}");
}
