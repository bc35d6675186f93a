//! Who looks for the ways to peers: threads that may wait for a neighbour to answer, so that nobody waits for another's neighbour.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Condvar, Mutex, PoisonError};

use feroce_engine::cm::CmId;

use crate::log;

/// Threads at most: as many neighbours are asked at a time.
const MOST: usize = 16;

/// Whose way is looked for.
#[derive(Debug)]
pub struct Question {
    /// The identifier.
    pub id: CmId,
    /// From where; any of the host's addresses if unspecified.
    pub source: IpAddr,
    /// To where.
    pub destination: SocketAddr,
}

/// Questions that wait, and the threads that answer them. Threads are made as they are needed, and stay.
#[derive(Debug, Default)]
pub struct Ways {
    state: Mutex<State>,
    asked: Condvar,
}

#[derive(Debug, Default)]
struct State {
    questions: VecDeque<Question>,
    idle: usize,
    threads: usize,
}

impl Ways {
    /// Has `answer` called with `question` by one of the threads.
    ///
    /// # Errors
    /// When there is no thread and none can be had.
    pub fn ask(
        &'static self,
        question: Question,
        answer: fn(&Question),
    ) -> Result<(), std::io::Error> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.idle <= state.questions.len() && state.threads < MOST {
            let thread = std::thread::Builder::new().name("feroce-cm-ways".to_owned());
            match thread.spawn(move || self.serve(answer)) {
                Ok(_) => state.threads += 1,
                Err(error) if state.threads == 0 => return Err(error),
                Err(error) => log::say(&format!("one thread less looks for ways: {error}")),
            }
        }
        state.questions.push_back(question);
        self.asked.notify_one();
        Ok(())
    }

    fn serve(&self, answer: fn(&Question)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let Some(question) = state.questions.pop_front() else {
                state.idle += 1;
                state = self.asked.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
                continue;
            };
            drop(state);
            answer(&question);
            state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Barrier;

    use super::*;

    /// Two that wait for each other are both answered, and all others too.
    #[test]
    fn questions_do_not_wait_for_each_other() {
        static WAYS: Ways = Ways { state: Mutex::new(EMPTY), asked: Condvar::new() };
        const EMPTY: State = State { questions: VecDeque::new(), idle: 0, threads: 0 };
        static MEET: Barrier = Barrier::new(2);
        static DONE: Barrier = Barrier::new(MOST + 5);
        let answer = |question: &Question| {
            if question.id.number() < 2 {
                MEET.wait();
            }
            // Each in a thread of its own, which meets the test at the end.
            std::thread::spawn(|| DONE.wait());
        };
        for number in 0..u32::try_from(MOST + 4).unwrap() {
            let id = CmId::from_number(number);
            let source = Ipv4Addr::UNSPECIFIED.into();
            WAYS.ask(Question { id, source, destination: (source, 1).into() }, answer).unwrap();
        }
        DONE.wait();
        assert!(WAYS.state.lock().unwrap().threads <= MOST);
    }
}
