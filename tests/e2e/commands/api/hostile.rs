//! Requests that the API must refuse.

use std::io::Write as _;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

use serde_json::json;

use super::client::{Served, say_over_tcp};
use crate::commands::jobs::Yard;
use crate::support::harness::PROMPT;

#[test]
fn a_page_of_another_site_gets_nothing_done() {
    let served = Served::local();
    let body = served.submission(&json!({})).to_string();
    let order = |headers: &str| {
        let length = body.len();
        served.client.say(&format!(
            "POST /api/v1/jobs HTTP/1.1\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
        ))
    };
    let json = "Content-Type: application/json\r\n";
    let (local, evil) = (
        "Host: localhost:8470\r\n",
        "Origin: http://evil.example\r\n",
    );
    assert_eq!(order(&format!("{local}{json}{evil}")).status, 403);
    assert_eq!(order(&format!("{local}{json}Origin: null\r\n")).status, 403);
    assert_eq!(
        order(&format!("{local}{json}Origin: http://localhost:3000\r\n")).status,
        403
    );
    assert_eq!(
        order(&format!("{local}{json}Sec-Fetch-Site: cross-site\r\n")).status,
        403
    );
    assert_eq!(
        order(&format!("{local}{json}Sec-Fetch-Site: same-site\r\n")).status,
        403
    );
    // A form on another site can send this content type without a preflight request.
    assert_eq!(
        order(&format!("{local}Content-Type: text/plain\r\n")).status,
        415
    );
    assert_eq!(order(&format!("Host: evil.example\r\n{json}")).status, 421);
    assert_eq!(order(json).status, 421);
    assert_eq!(
        served.client.get("/api/v1/jobs").ok()["jobs"],
        json!([]),
        "none of them did anything"
    );
    let answer = order(&format!(
        "{local}{json}Origin: http://localhost:8470\r\nSec-Fetch-Site: same-origin\r\n"
    ));
    assert_eq!(answer.status, 201, "{answer:?}");
    assert!(
        !answer.head.contains("access-control") && !answer.head.contains("set-cookie"),
        "{answer:?}"
    );
    assert!(
        answer
            .head
            .contains("content-security-policy: default-src 'none'"),
        "{answer:?}"
    );
}

#[test]
fn over_tcp_the_api_needs_the_token() {
    let served = Served::local();
    let get = |path: &str, more: &str| {
        let words = format!(
            "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n{more}\r\n",
            served.address
        );
        say_over_tcp(&served.address, &words)
    };
    for path in [
        "/api/v1/jobs",
        "/api/v1/status",
        "/api/v1/events",
        "/api/v1/openapi.json",
        "/api/nothing",
    ] {
        assert_eq!(get(path, "").status, 401, "{path}");
        assert_eq!(
            get(path, "Authorization: Bearer 0123\r\n").status,
            401,
            "{path}"
        );
    }
    let token = format!("Authorization: Bearer {}\r\n", served.token());
    assert_eq!(get("/api/v1/jobs", &token).ok()["jobs"], json!([]));
    assert_eq!(
        get(
            "/api/v1/jobs",
            &format!("{token}Origin: http://evil.example\r\n")
        )
        .status,
        403
    );
    let page = get("/", "");
    assert!(
        page.status == 200 && !page.text.contains(&served.token()),
        "the page itself has nothing to hide"
    );
}

#[test]
fn the_token_of_an_ended_runner_is_refused_by_the_next() {
    let mut served = Served::local();
    let ask = |served: &Served, word: &str| {
        let words = format!(
            "GET /api/v1/jobs HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nAuthorization: Bearer {word}\r\n\r\n",
            served.address
        );
        say_over_tcp(&served.address, &words).status
    };
    let old = served.token();
    assert_eq!(ask(&served, &old), 200);
    served.restart();
    assert_eq!(
        (ask(&served, &old), ask(&served, &served.token())),
        (401, 200)
    );
}

#[test]
fn a_token_that_others_could_read_is_replaced_and_its_file_left_alone() {
    let yard = Yard::local();
    std::fs::create_dir_all(yard.place()).unwrap();
    std::fs::set_permissions(yard.place(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let (token, elsewhere) = (yard.place().join("token"), yard.site.path("elsewhere"));
    let known = "0123456789abcdef0123456789abcdef";
    std::fs::write(&elsewhere, known).unwrap();
    std::fs::set_permissions(&elsewhere, std::fs::Permissions::from_mode(0o644)).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &token).unwrap();
    // A leftover of a runner that was killed while it wrote the token.
    std::fs::write(yard.place().join("token.new"), known).unwrap();
    let served = Served::of(yard);
    let found = token.symlink_metadata().unwrap();
    assert!(
        found.is_file() && found.permissions().mode() & 0o777 == 0o600,
        "{found:?}"
    );
    assert!(served.token().len() == 64 && !served.token().contains(known));
    assert_eq!(std::fs::read_to_string(elsewhere).unwrap(), known);
}

#[test]
fn addresses_that_other_hosts_reach_are_refused() {
    let yard = Yard::local();
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:8470"] {
        yard.run(&["runner", "--http", address]).expect(11).says(&[
            "other hosts can reach",
            "a reverse proxy ('--http-name')",
            "ssh -L",
            "'The page from other hosts' in OPERATIONS.md",
        ]);
    }
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/OPERATIONS.md");
    let document = std::fs::read_to_string(document).unwrap();
    assert!(document.contains("\n### The page from other hosts\n"));
    for (words, part) in [
        (
            &["--http", "--http-name", "h"][..],
            "needs '--http' with an address",
        ),
        (&["--http-name", "h"], "arguments were not provided"),
        (
            &["--http", "0", "--http-name", "https://h"],
            "write NAME or NAME:PORT",
        ),
    ] {
        yard.run(&[&["runner"], words].concat())
            .expect(1)
            .says(&[part]);
    }
}

#[test]
fn requests_that_are_too_large_are_refused() {
    let served = Served::local();
    let label = "x".repeat(70_000);
    assert_eq!(
        served
            .client
            .post(
                "/api/v1/jobs",
                &served.submission(&json!({ "label": label }))
            )
            .status,
        413
    );
    let long = format!("GET /?{label} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(matches!(served.client.say(&long).status, 414 | 431));
}

/// There are more clients than allowed connections.
#[test]
fn a_job_is_taken_and_ends_while_clients_hang() {
    let served = Served::local();
    let hanging: Vec<_> = (0..100)
        .map(|_| {
            let mut socket = UnixStream::connect(&served.client.socket).unwrap();
            socket
                .write_all(b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Le")
                .unwrap();
            socket
        })
        .collect();
    served.wait_for_end(served.submit(&json!({})));
    drop(hanging);
}

/// There are more unauthenticated clients than allowed connections.
#[test]
fn hanging_tcp_clients_do_not_block_other_clients() {
    let served = Served::local();
    let hang = |_| {
        let mut socket = TcpStream::connect(&served.address).unwrap();
        socket.write_all(b"GET / HTTP/1.1\r\nHost: local").unwrap();
        socket
    };
    let hanging: Vec<_> = (0..100).map(hang).collect();
    let begun = Instant::now();
    let head = format!(
        "Host: {}\r\nAuthorization: Bearer {}",
        served.address,
        served.token()
    );
    let words = format!("GET /api/v1/jobs HTTP/1.1\r\n{head}\r\nConnection: close\r\n\r\n");
    assert_eq!(
        say_over_tcp(&served.address, &words).ok()["jobs"],
        json!([])
    );
    assert!(begun.elapsed() < PROMPT, "{:?}", begun.elapsed());
    drop(hanging);
}

#[test]
fn labels_are_returned_unchanged() {
    let served = Served::local();
    let name = "<img src=x onerror=alert(1)>";
    let id = served.submit(&json!({ "label": name }));
    assert_eq!(served.wait_for_end(id)["label"], name);
    let answer = served.client.get(&format!("/api/v1/jobs/{id}"));
    assert!(
        answer.head.contains("content-type: application/json") && answer.head.contains("nosniff"),
        "{answer:?}"
    );
}
