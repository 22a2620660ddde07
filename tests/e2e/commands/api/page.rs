//! The page in a real browser, operated like a user would.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::browser::Browser;
use super::client::Served;
use crate::commands::jobs::wait_for;
use crate::support::tree::paint;

/// Starts a runner with a target daemon, and a browser that shows the runner's page.
fn shown() -> Option<(Served, Browser)> {
    let browser = Browser::start()?;
    let served = Served::daemon();
    served.yard.paint_slow();
    browser.visit(&format!(
        "http://{}/#token={}",
        served.address,
        served.token()
    ));
    browser.wait_until(LIVE);
    Some((served, browser))
}

fn write_new(served: &Served, browser: &Browser) {
    let submission = served.submission(&json!({}));
    browser.click("#open-new");
    browser.write("#sources", submission["sources"][0].as_str().unwrap());
    browser.write("#target", submission["target"].as_str().unwrap());
    browser.click("#new summary");
    // The rate is measured once two groups of 4 MiB are 3 s apart.
    browser.write("#limit", "5Mbit");
}

#[test]
fn a_transfer_is_previewed_submitted_watched_held_and_ended() {
    let Some((served, browser)) = shown() else {
        return;
    };
    write_new(&served, &browser);
    assert_eq!(
        browser.script("return document.querySelector('#submit').disabled"),
        true,
        "not previewed yet"
    );
    browser.click("#preview");
    browser.wait_until("!document.querySelector('#submit').disabled");
    assert!(
        browser.text("#plan-sum").contains("2 files with 12.0 MiB"),
        "{}",
        browser.text("#plan-sum")
    );
    assert_eq!(
        served.client.get("/api/v1/jobs").ok()["jobs"],
        json!([]),
        "a preview submits nothing"
    );
    browser.write("#label", "x");
    assert_eq!(
        browser.script("return document.querySelector('#submit').disabled"),
        true,
        "it is another one now"
    );
    browser.click("#preview");
    browser.wait_until("!document.querySelector('#submit').disabled");
    browser.click("#submit");
    browser.wait_until("/bit\\/s/.test(document.querySelector('#running dd')?.textContent)");
    browser.wait_until("document.querySelector('#running progress').value > 0");
    browser.wait_until("document.querySelector('#running [aria-current=step]')");
    browser.wait_until("document.title.includes('1 running')");
    browser.click("#running [data-order=pause]");
    browser
        .wait_until("document.querySelector('#waiting .badge.paused')?.textContent === 'paused'");
    browser.click("#waiting [data-order=resume]");
    browser.click("#running button.name");
    browser.wait_until("document.querySelector('#job-chart polyline')");
    browser.click("#job .close");
    browser.click("#running [data-order=cancel]");
    assert_eq!(
        served.client.get("/api/v1/jobs/1").ok()["asked"],
        Value::Null,
        "the first click asks back"
    );
    browser.click("#running [data-order=cancel]");
    browser.wait_until("document.querySelector('#history .badge')?.textContent === 'cancelled'");
    browser.click("#history button.name");
    browser.wait_until("document.querySelector('#job-events').children.length >= 4");
    browser.click("#job [data-order=rerun]");
    browser.wait_until("document.querySelector('#job-title').textContent.includes('#2')");
    assert_eq!(browser.errors(), Vec::<String>::new());
}

/// The response to an order may arrive after the stream has reported the result of the order.
#[test]
fn a_late_answer_does_not_replace_what_the_stream_has_reported() {
    let Some((served, browser)) = shown() else {
        return;
    };
    served.submit(&json!({ "limit": "5Mbit" }));
    browser.wait_until("document.querySelector('#running progress')?.value > 0");
    // The page draws changes four times a second.
    browser.script(
        "const real = window.fetch; window.fetch = async (...request) => { \
            const answer = await real(...request); \
            if (!String(request[0]).endsWith('/pause')) return answer; \
            const paused = () => document.querySelector('#waiting .badge.paused')?.textContent === 'paused'; \
            while (!paused()) await new Promise((again) => setTimeout(again, 50)); \
            setTimeout(() => { window.stillPaused = paused(); }, 1000); \
            return answer; };",
    );
    browser.click("#running [data-order=pause]");
    browser.wait_until("window.stillPaused !== undefined");
    assert_eq!(browser.script("return window.stillPaused"), true);
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
fn the_page_asks_for_the_new_token_after_a_runner_restart() {
    let Some((mut served, browser)) = shown() else {
        return;
    };
    let id = served.submit(&json!({ "limit": "5Mbit", "label": "survivor" }));
    browser.wait_until("document.querySelector('#running progress')?.value > 0");
    browser.script("window.lost = false; new MutationObserver(() => { window.lost ||= \
        document.querySelector('#link').dataset.state === 'lost'; }).observe(document.querySelector('#link'), \
        { attributes: true });");
    // The dialog would cover the token prompt.
    browser.click("#running button.name");
    served.restart();
    browser.wait_until(&format!("window.lost && {ASKS}"));
    assert_eq!(
        browser.script("return document.querySelector('#job').open"),
        false
    );
    let why = browser.text("#token-error");
    assert!(
        why.contains("the runner was restarted: its new token is in the file 'token'"),
        "{why}"
    );
    browser.write("#word", &served.token());
    browser.write("#word", ENTER);
    browser.wait_until(LIVE);
    served.submit(&json!({ "label": "later" }));
    served.wait_for_end(id);
    browser.wait_until("document.querySelectorAll('#history .badge.done').length === 2");
    let history = browser.text("#history tbody");
    assert!(
        history.contains("survivor") && history.contains("later"),
        "{history}"
    );
    browser.wait_until("document.querySelector('#running').children.length === 0");
}

#[test]
fn names_with_markup_are_text() {
    let Some((served, browser)) = shown() else {
        return;
    };
    let name = "<img src=x onerror=\"window.broken=1\">";
    let source = served.yard.site.source().join(name);
    paint(source.join(name), 10);
    let mut submission = served.submission(&json!({ "label": name }));
    submission["sources"] = json!([source]);
    assert_eq!(served.client.post("/api/v1/jobs", &submission).status, 201);
    browser.wait_until("document.querySelector('#history .badge.done')");
    browser.click("#history button.name");
    browser.wait_until("document.querySelector('#job-events').children.length === 3");
    browser.script("document.querySelector('#job').close()");
    let bold = "<b>bold";
    paint(served.yard.site.source().join(bold), 10);
    write_new(&served, &browser);
    browser.click("#preview");
    browser.wait_until("document.querySelector('#plan-sample').children.length > 0");
    assert!(
        browser.text("#plan-sample").contains(bold),
        "{}",
        browser.text("#plan-sample")
    );
    assert_eq!(
        browser.script("return [document.images.length, window.broken ?? null]"),
        json!([0, null])
    );
    let markup = "try { document.body.innerHTML = '<b>x</b>'; return 'done'; } catch (error) { return error.name; }";
    assert_eq!(
        browser.script(markup),
        "TypeError",
        "the browser itself refuses markup"
    );
}

fn three_receivers() -> Value {
    let node = |name: &str, state: &str, percent: u64| {
        json!({
            "name": name, "state": state, "files": 1230, "bytes": percent << 30,
            "bytes_per_second": percent * 1_250_000, "percent_of_others": percent,
        })
    };
    let nodes = [
        node("dtn3.beamline.example.org", "slow", 31),
        node("dtn1", "works", 100),
        node("dtn2", "works", 98),
    ];
    json!({ "kind": "receiver", "count": 3, "items_waiting": 12, "nodes": nodes, "receivers": [] })
}

/// Whether all threads of a process are stopped.
fn is_stopped(pid: Pid) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).unwrap();
    let mut stats = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("stat")));
    // A thread that has just ended has no file.
    stats.all(|stat| stat.is_ok_and(|stat| stat.rsplit(')').next().unwrap().starts_with(" T")))
}

/// The process is stopped, and the test writes the events that several nodes would have reported.
#[test]
fn the_nodes_of_a_job_are_seen_on_the_page_in_the_api_and_in_a_terminal() {
    let Some((served, browser)) = shown() else {
        return;
    };
    let id = served.submit(&json!({ "limit": "20Mbit" }));
    served.yard.wait_until_moving(&id.to_string());
    let [pid] = served.yard.processes()[..] else {
        panic!("one process")
    };
    kill_process(pid, Signal::STOP).unwrap();
    // Until all threads are stopped, the process may still write a line.
    wait_for("the stop", || is_stopped(pid));
    let nodes = three_receivers();
    let path = served.yard.place().join(format!("{id}/events-1"));
    let told = std::fs::read_to_string(&path).unwrap();
    let last = told
        .lines()
        .rev()
        .find(|line| line.contains("\"progress\""))
        .unwrap();
    let mut line: Value = serde_json::from_str(last).unwrap();
    assert_eq!(line["nodes"], Value::Null, "one node is none of several");
    line["nodes"] = nodes.clone();
    line["lanes"] = 0.into();
    let mut events = std::fs::File::options().append(true).open(&path).unwrap();
    writeln!(events, "{line}").unwrap();
    assert_eq!(
        served.wait_until(id, |job| !job["nodes"].is_null())["nodes"],
        nodes
    );
    let printed = served.yard.run(&["job", &id.to_string()]).done().stdout;
    let slow =
        "dtn3.beamline.example.org  slow: 1230 files, 31.0 GiB, 310 Mbit/s, 31 % of the median";
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words(&printed).contains(&words(slow))
            && printed.contains("3 receivers, 12 items waiting:"),
        "{printed}"
    );
    browser.click("#running button.name");
    browser.wait_until("document.querySelectorAll('#job-nodes tbody tr').length === 3");
    assert_eq!(browser.text("#job-nodes td.error"), "slow");
    assert_eq!(
        browser.text("#job-nodes-waiting"),
        "3 receivers, 12 items waiting."
    );
    assert_eq!(
        (browser.text("#job-nodes h3"), browser.text("#job-nodes th")),
        ("Receivers".into(), "Receiver".into())
    );
    let facts = browser.text("#job-facts");
    assert!(
        facts.contains("Attempt") && !facts.contains("Lanes"),
        "{facts}"
    );
    for (width, mobile) in [(1200, false), (360, true)] {
        let size =
            json!({ "width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": mobile });
        browser.devtools("Emulation.setDeviceMetricsOverride", &size);
        let within = "document.querySelector('#job').scrollWidth <= document.querySelector('#job').clientWidth";
        browser.wait_until(&format!(
            "{within} && document.documentElement.scrollWidth <= {width}"
        ));
    }
    assert_eq!(browser.errors(), Vec::<String>::new());
    kill_process(pid, Signal::CONT).unwrap();
}

#[test]
fn the_page_works_by_keyboard_on_a_narrow_screen() {
    let Some((served, browser)) = shown() else {
        return;
    };
    let site = &served.yard.site;
    let small =
        json!({ "sources": [site.source().join("small")], "target": site.address("e").to_str() });
    served.wait_for_end(
        served.client.post("/api/v1/jobs", &small).body["id"]
            .as_i64()
            .unwrap(),
    );
    let id = served
        .submit(&json!({ "limit": "5Mbit", "label": "a-long-name-without-any-space-".repeat(4) }));
    browser.wait_until("document.querySelector('#running progress')?.value > 0");
    browser.wait_until("document.querySelector('#history .badge.done')");
    let size = json!({ "width": 360, "height": 800, "deviceScaleFactor": 1, "mobile": true });
    browser.devtools("Emulation.setDeviceMetricsOverride", &size);
    let fits = "document.documentElement.scrollWidth <= 360";
    browser.wait_until(fits);
    browser.write("#running button.name", ENTER);
    browser.wait_until("document.querySelector('#job').open");
    let within =
        "document.querySelector('#job').scrollWidth <= document.querySelector('#job').clientWidth";
    browser.wait_until(&format!("{fits} && {within}"));
    browser.write("#job .close", ESCAPE);
    browser.wait_until("!document.querySelector('#job').open");
    browser.write("#running [data-order=pause]", ENTER);
    served.wait_until(id, |job| job["state"] == "paused");
    browser.write("#open-new", ENTER);
    browser.wait_until("document.activeElement.id === 'sources'");
    browser.wait_until(fits);
    let nameless = "return [...document.querySelectorAll('button, input, select, textarea, table, dialog, svg')].filter( \
        (node) => !(node.labels?.length || node.textContent.trim() || node.ariaLabel || \
            node.getAttribute('aria-labelledby'))).map((node) => node.outerHTML)";
    assert_eq!(
        browser.script(nameless),
        json!([]),
        "all that can be used has a name"
    );
}

#[test]
fn over_tcp_the_page_asks_for_the_token() {
    let Some((served, browser)) = shown() else {
        return;
    };
    browser.script("sessionStorage.clear()");
    browser.visit(&format!("http://{}/", served.address));
    browser.wait_until(ASKS);
    browser.write("#word", "no-token-of-this-runner");
    browser.click("#token button");
    browser
        .wait_until("document.querySelector('#token-error').textContent.includes('not the token')");
    browser.write("#word", &served.token());
    browser.write("#word", ENTER);
    browser.wait_until(LIVE);
    assert_eq!(
        browser.script("return [document.cookie, location.hash]"),
        json!(["", ""])
    );
}

#[test]
fn a_wrong_token_in_the_address_is_reported() {
    let Some((served, browser)) = shown() else {
        return;
    };
    let told = |word: &str, why: &str| {
        browser.visit("about:blank");
        browser.visit(&format!("http://{}/#{word}", served.address));
        browser.wait_until(ASKS);
        let said = browser.text("#token-error");
        assert!(said.contains(why), "{word}: {said}");
    };
    browser.script("sessionStorage.clear()");
    told(
        &"f".repeat(64),
        "the token after # is not the token in the file 'token'",
    );
    told("short", "the text after # is not a token");
    told("%", "the text after # is not a token");
    // The page accepts the correct token unchanged.
    browser.visit(&format!(
        "http://{}/#token={}",
        served.address,
        served.token()
    ));
    browser.wait_until(LIVE);
}

#[test]
fn the_page_stops_sending_its_token_when_another_server_answers() {
    let Some((mut served, browser)) = shown() else {
        return;
    };
    // Collects the waits between two attempts. Each is longer than the drawing interval of the page.
    browser.script(
        "window.waits = new Set();
         const [begin, end] = [window.setTimeout, window.clearTimeout];
         window.setTimeout = (done, pause) => {
           const wait = begin(() => { waits.delete(wait); done(); }, pause);
           if (pause >= 500) waits.add(wait);
           return wait;
         };
         window.clearTimeout = (wait) => { waits.delete(wait); end(wait); };",
    );
    served.end();
    browser.wait_until("waits.size === 1");
    let other = Impostor::start(&served.address);
    browser.wait_until("!document.querySelector('#again').hidden");
    let words = other.words();
    assert!(
        words > 0 && browser.text("#link").contains("is not the runner"),
        "{}",
        browser.text("#link")
    );
    assert_eq!(browser.script("return waits.size"), json!(0));
    assert_eq!(other.words(), words);
    drop(other);
    served.restart();
    browser.click("#again");
    browser.wait_until(ASKS);
}

/// A server at the former address of a runner. It counts the tokens that it receives.
struct Impostor {
    words: Arc<AtomicUsize>,
    over: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Impostor {
    fn start(address: &str) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (words, over) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let (count, ends) = (Arc::clone(&words), Arc::clone(&over));
        let thread = std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                let Ok((mut socket, _)) = listener.accept() else {
                    std::thread::sleep(Duration::from_millis(10));
                    continue;
                };
                socket.set_nonblocking(false).unwrap();
                socket
                    .set_read_timeout(Some(Duration::from_millis(500)))
                    .unwrap();
                let mut head = [0; 4096];
                let read = socket.read(&mut head).unwrap_or(0);
                let head = String::from_utf8_lossy(&head[..read]).to_lowercase();
                count.fetch_add(
                    usize::from(head.contains("authorization: bearer ")),
                    Ordering::Relaxed,
                );
                let _gone = socket.write_all(
                    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi",
                );
            }
        });
        Self {
            words,
            over,
            thread: Some(thread),
        }
    }

    fn words(&self) -> usize {
        self.words.load(Ordering::Relaxed)
    }
}

impl Drop for Impostor {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ended = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

const ASKS: &str =
    "!document.querySelector('#token').hidden && document.querySelector('#board').hidden";
const LIVE: &str = "document.querySelector('#link')?.dataset.state === 'live'";
/// Key codes of WebDriver.
const ENTER: &str = "\u{e007}";
const ESCAPE: &str = "\u{e00c}";
