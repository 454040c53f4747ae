//! Goes through a program: says which step may begin, and is told which is over.
//!
//! ```text
//!            its stream's turn,
//!            all that it needs over                begin(): Some(step)               over(step)
//!   waiting ───────────────────────► ready ───────────────────────► under way ───────────────► over
//! ```

use crate::program::Program;
use std::collections::VecDeque;
use std::sync::Arc;

/// Steps of one stream that may be under way at once: enough for one to be on the wire, one in the kernel, and one
/// on its way to be waited for, whatever their size.
const UNDER_WAY_MAX: usize = 4;

/// The state of one host's program. Whoever runs it begins what [`Engine::begin`] names, in that order, and says
/// [`Engine::over`] when a step is done: of a send, when its memory may be written again; of a
/// receive, when the piece is in its place.
#[derive(Debug)]
pub struct Engine {
    program: Arc<Program>,
    needs: Vec<usize>,
    streams: Vec<Flow>,
    ready: VecDeque<usize>,
    left: usize,
}

#[derive(Debug, Default)]
struct Flow {
    /// Not yet begun, in the program's order.
    waiting: VecDeque<usize>,
    under_way: usize,
}

impl Engine {
    /// At the beginning of a program.
    pub fn new(program: Arc<Program>) -> Self {
        let mut streams = Vec::new();
        streams.resize_with(program.streams, Flow::default);
        for (at, step) in program.steps.iter().enumerate() {
            streams[step.stream].waiting.push_back(at);
        }
        let mut engine = Self {
            needs: program.steps.iter().map(|step| step.needs).collect(),
            ready: VecDeque::new(),
            left: program.steps.len(),
            streams,
            program,
        };
        for stream in 0..engine.streams.len() {
            engine.advance(stream);
        }
        engine
    }

    /// A step to begin now, if there is one.
    pub fn begin(&mut self) -> Option<usize> {
        self.ready.pop_front()
    }

    /// A step that had begun is over.
    pub fn over(&mut self, step: usize) {
        let program = Arc::clone(&self.program);
        let of = &program.steps[step];
        self.left -= 1;
        self.streams[of.stream].under_way -= 1;
        self.advance(of.stream);
        for waiting in &of.needed_by {
            self.needs[*waiting] -= 1;
            if self.needs[*waiting] == 0 {
                self.advance(program.steps[*waiting].stream);
            }
        }
    }

    /// Whether all steps are over.
    pub fn is_over(&self) -> bool {
        self.left == 0
    }

    fn advance(&mut self, stream: usize) {
        let flow = &mut self.streams[stream];
        while let Some(first) = flow.waiting.front().copied() {
            if self.needs[first] > 0 || flow.under_way == UNDER_WAY_MAX {
                return;
            }
            flow.waiting.pop_front();
            flow.under_way += 1;
            self.ready.push_back(first);
        }
    }
}

#[cfg(test)]
mod tests;
