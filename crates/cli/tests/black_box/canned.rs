//! A test server with canned answers, so that tests can check exact bytes, and refusals that a real server seldom
//! gives. Its threads end with the test's process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// A request as the server received it.
#[derive(Debug, Clone)]
pub struct Request {
    /// Method, path and query.
    pub line: String,
    /// Headers, in lower case.
    pub headers: String,
    /// The body.
    pub body: String,
}

/// A canned answer.
#[derive(Clone)]
pub struct Answer {
    /// Status line without the version.
    pub status: &'static str,
    /// The body.
    pub body: String,
}

/// Answers each request with the next canned answer; the last answer repeats.
pub struct Canned {
    /// The address of the server.
    pub url: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Canned {
    /// Starts a server on a free port.
    pub fn new(answers: &[(&'static str, &str)]) -> Canned {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("it is bound"));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let answers: Vec<Answer> =
            answers.iter().map(|(status, body)| Answer { status, body: (*body).to_owned() }).collect();
        let kept = Arc::clone(&requests);
        thread::spawn(move || {
            for connection in listener.incoming().map_while(Result::ok) {
                answer(connection, &answers, &kept);
            }
        });
        Canned { url, requests }
    }

    /// The requests received so far.
    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().expect("no holder panics").clone()
    }
}

fn answer(connection: TcpStream, answers: &[Answer], requests: &Mutex<Vec<Request>>) {
    let mut reader = BufReader::new(connection.try_clone().expect("a second handle"));
    let mut line = String::new();
    if reader.read_line(&mut line).unwrap_or(0) == 0 {
        return;
    }
    let mut headers = String::new();
    while !headers.ends_with("\r\n\r\n") && reader.read_line(&mut headers).unwrap_or(0) > 2 {}
    let headers = headers.to_lowercase();
    let length = headers
        .lines()
        .find_map(|header| header.strip_prefix("content-length: "))
        .map_or(0, |length| length.trim().parse().expect("a length"));
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("the whole body");
    let at = {
        let mut requests = requests.lock().expect("no holder panics");
        requests.push(Request {
            line: line.trim_end().to_owned(),
            headers,
            body: String::from_utf8(body).expect("text"),
        });
        requests.len() - 1
    };
    let answer = answers.get(at).or(answers.last()).expect("there is an answer");
    let head = format!(
        "HTTP/1.1 {}\r\ncontent-length: {}\r\nlocation: /elsewhere\r\nconnection: close\r\n\r\n",
        answer.status,
        answer.body.len()
    );
    // A client that has read enough may have closed the connection.
    let _ = (&connection).write_all(head.as_bytes());
    let _ = (&connection).write_all(answer.body.as_bytes());
}
