//! What browsers demand of a kernel and naga does not check: barriers and subgroup operations where all threads are
//! together, loops that can end, no store to a vector's component by a run-time index.
//!
//! Walks naga's IR. Divergence is followed through values, variables, arguments and control flow; in doubt a value counts
//! as divergent.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, HashSet};

use naga::valid::ModuleInfo;
use naga::{
    AddressSpace, Binding, Block, BuiltIn, Expression, Function, Handle, LocalVariable, Module, Statement,
    StorageAccess, TypeInner,
};

/// All findings in a validated module, each one a sentence; empty if there is nothing to say.
pub fn findings(module: &Module, info: &ModuleInfo) -> BTreeSet<String> {
    let lint = Lint { module, findings: RefCell::default(), returns: RefCell::default() };
    for (i, entry) in module.entry_points.iter().enumerate() {
        let arguments: Vec<bool> = entry
            .function
            .arguments
            .iter()
            .map(|a| {
                !matches!(a.binding, Some(Binding::BuiltIn(BuiltIn::WorkGroupId | BuiltIn::NumWorkGroups)))
            })
            .collect();
        lint.function(&entry.function, &arguments, false);
        lint.vector_stores(&entry.function, info.get_entry_point(i));
    }
    for (handle, function) in module.functions.iter() {
        lint.vector_stores(function, &info[handle]);
    }
    lint.findings.into_inner()
}

struct Lint<'a> {
    module: &'a Module,
    findings: RefCell<BTreeSet<String>>,
    /// Whether a function's result diverges, by function, divergence of its arguments and of its call.
    returns: RefCell<HashMap<(Handle<Function>, Vec<bool>, bool), bool>>,
}

/// How a block may be left by some threads and not by others.
#[derive(Clone, Copy, Default)]
struct Leaves {
    function: bool,
    turn: bool,
}

struct Walk<'a> {
    lint: &'a Lint<'a>,
    function: &'a Function,
    arguments: &'a [bool],
    locals: HashSet<Handle<LocalVariable>>,
    calls: HashSet<Handle<Expression>>,
    returns_divergent: bool,
    /// Whether an expression diverges, as far as is known by now.
    known: RefCell<HashMap<Handle<Expression>, bool>>,
}

impl Lint<'_> {
    fn find(&self, function: &Function, what: &str) {
        let name = function.name.as_deref().unwrap_or("main");
        self.findings.borrow_mut().insert(format!("{name}: {what}"));
    }

    /// Walks a function until no more values turn out to be divergent. Returns whether its result is.
    fn function(&self, function: &Function, arguments: &[bool], divergent: bool) -> bool {
        let mut walk = Walk {
            lint: self,
            function,
            arguments,
            locals: HashSet::new(),
            calls: HashSet::new(),
            returns_divergent: false,
            known: RefCell::default(),
        };
        loop {
            let known = (walk.locals.len(), walk.calls.len(), walk.returns_divergent);
            walk.block(&function.body, divergent);
            if known == (walk.locals.len(), walk.calls.len(), walk.returns_divergent) {
                return walk.returns_divergent;
            }
        }
    }

    fn call(&self, handle: Handle<Function>, arguments: Vec<bool>, divergent: bool) -> bool {
        let key = (handle, arguments, divergent);
        if let Some(&known) = self.returns.borrow().get(&key) {
            return known;
        }
        let returns = self.function(&self.module.functions[handle], &key.1, divergent);
        self.returns.borrow_mut().insert(key, returns);
        returns
    }

    fn vector_stores(&self, function: &Function, info: &naga::valid::FunctionInfo) {
        each_statement(&function.body, &mut |statement| {
            let Statement::Store { pointer, .. } = statement else { return };
            let Expression::Access { base, .. } = function.expressions[*pointer] else { return };
            let is_vector = match *info[base].ty.inner_with(&self.module.types) {
                TypeInner::Pointer { base, .. } => {
                    matches!(self.module.types[base].inner, TypeInner::Vector { .. })
                }
                TypeInner::ValuePointer { size, .. } => size.is_some(),
                _ => false,
            };
            if is_vector {
                self.find(function, "stores to a vector's component by a run-time index");
            }
        });
    }
}

/// Calls `visit` on every statement of a block and of the blocks in it.
fn each_statement(block: &Block, visit: &mut impl FnMut(&Statement)) {
    for statement in block {
        visit(statement);
        match statement {
            Statement::Block(inner) => each_statement(inner, visit),
            Statement::If { accept, reject, .. } => {
                each_statement(accept, visit);
                each_statement(reject, visit);
            }
            Statement::Switch { cases, .. } => cases.iter().for_each(|c| each_statement(&c.body, visit)),
            Statement::Loop { body, continuing, .. } => {
                each_statement(body, visit);
                each_statement(continuing, visit);
            }
            _ => {}
        }
    }
}

impl Walk<'_> {
    /// Walks a block that some threads may have left behind (`divergent`). Says how it may be left by some only.
    fn block(&mut self, block: &Block, divergent: bool) -> Leaves {
        let mut leaves = Leaves::default();
        for statement in block {
            let now = divergent || leaves.function || leaves.turn;
            let inner = self.statement(statement, now);
            leaves.function |= inner.function;
            leaves.turn |= inner.turn;
        }
        leaves
    }

    fn statement(&mut self, statement: &Statement, now: bool) -> Leaves {
        let mut leaves = Leaves::default();
        match statement {
            Statement::Block(inner) => leaves = self.block(inner, now),
            Statement::If { condition, accept, reject } => {
                let split = now || self.diverges(*condition);
                leaves = join(self.block(accept, split), self.block(reject, split));
            }
            Statement::Switch { selector, cases } => {
                let split = now || self.diverges(*selector);
                for case in cases {
                    let case = self.block(&case.body, split);
                    // A break ends the switch, where the threads meet again.
                    leaves.function |= case.function;
                }
            }
            Statement::Loop { body, continuing, break_if } => {
                leaves = self.repeat(body, continuing, *break_if, now)
            }
            Statement::Break | Statement::Continue => leaves.turn = now,
            Statement::Return { value } => {
                self.returns_divergent |= now || value.is_some_and(|v| self.diverges(v));
                leaves.function = now;
            }
            Statement::Store { pointer, value } => {
                if (now || self.diverges(*value) || self.diverges(*pointer))
                    && let Some(local) = self.local(*pointer)
                    && self.locals.insert(local)
                {
                    self.known.get_mut().clear();
                }
            }
            Statement::Call { function, arguments, result } => {
                let arguments = arguments.iter().map(|&a| self.diverges(a)).collect();
                if self.lint.call(*function, arguments, now) {
                    self.calls.extend(*result);
                    self.known.get_mut().clear();
                }
            }
            _ => self.together(statement, now),
        }
        leaves
    }

    fn repeat(
        &mut self,
        body: &Block,
        continuing: &Block,
        break_if: Option<Handle<Expression>>,
        now: bool,
    ) -> Leaves {
        let mut ends = break_if.is_some();
        for statement in body {
            // `for` and `while` begin with their condition.
            if let Statement::If { accept, reject, .. } = statement {
                ends |= accept.iter().chain(reject).any(|s| matches!(s, Statement::Break));
            }
        }
        if !ends {
            self.lint.find(self.function, "has a loop without a condition");
        }
        let mut split = now || break_if.is_some_and(|b| self.diverges(b));
        let mut leaves = Leaves::default();
        // Threads that leave in one turn are missing in the next.
        for _ in 0..2 {
            let inner = join(self.block(body, split), self.block(continuing, split));
            split |= inner.turn || inner.function;
            leaves.function |= inner.function;
        }
        leaves
    }

    fn together(&self, statement: &Statement, now: bool) {
        let what = match statement {
            Statement::ControlBarrier(_) | Statement::WorkGroupUniformLoad { .. } => "a barrier",
            Statement::SubgroupBallot { .. }
            | Statement::SubgroupGather { .. }
            | Statement::SubgroupCollectiveOperation { .. } => "a subgroup operation",
            Statement::Kill => "an end",
            _ => return,
        };
        if now {
            self.lint.find(self.function, &format!("{what} that some threads may not reach"));
        }
    }

    /// The variable that a pointer leads into.
    fn local(&self, pointer: Handle<Expression>) -> Option<Handle<LocalVariable>> {
        match self.function.expressions[pointer] {
            Expression::LocalVariable(local) => Some(local),
            Expression::Access { base, .. } | Expression::AccessIndex { base, .. } => self.local(base),
            _ => None,
        }
    }

    /// Whether what a pointer leads to may differ between threads at the same address.
    fn differs(&self, pointer: Handle<Expression>) -> bool {
        match self.function.expressions[pointer] {
            Expression::LocalVariable(local) => self.locals.contains(&local),
            Expression::Access { base, .. } | Expression::AccessIndex { base, .. } => self.differs(base),
            Expression::GlobalVariable(global) => match self.lint.module.global_variables[global].space {
                AddressSpace::Uniform | AddressSpace::Handle => false,
                AddressSpace::Storage { access } => access.contains(StorageAccess::STORE),
                _ => true,
            },
            _ => true,
        }
    }

    fn diverges(&self, expression: Handle<Expression>) -> bool {
        if let Some(&known) = self.known.borrow().get(&expression) {
            return known;
        }
        let diverges = self.operands_diverge(expression);
        self.known.borrow_mut().insert(expression, diverges);
        diverges
    }

    fn operands_diverge(&self, expression: Handle<Expression>) -> bool {
        let any = |handles: &[Handle<Expression>]| handles.iter().any(|&h| self.diverges(h));
        match self.function.expressions[expression] {
            Expression::Literal(_)
            | Expression::Constant(_)
            | Expression::Override(_)
            | Expression::ZeroValue(_)
            | Expression::GlobalVariable(_)
            | Expression::LocalVariable(_)
            | Expression::ArrayLength(_)
            | Expression::ImageQuery { .. }
            | Expression::WorkGroupUniformLoadResult { .. } => false,
            Expression::FunctionArgument(i) => self.arguments[i as usize],
            Expression::Compose { ref components, .. } => any(components),
            Expression::Access { base, index } => any(&[base, index]),
            Expression::AccessIndex { base, .. } => any(&[base]),
            Expression::Splat { value, .. } => any(&[value]),
            Expression::Swizzle { vector, .. } => any(&[vector]),
            Expression::Load { pointer } => self.diverges(pointer) || self.differs(pointer),
            Expression::ImageLoad { image, coordinate, .. } => any(&[image, coordinate]),
            Expression::Unary { expr, .. } | Expression::As { expr, .. } => any(&[expr]),
            Expression::Binary { left, right, .. } => any(&[left, right]),
            Expression::Select { condition, accept, reject } => any(&[condition, accept, reject]),
            Expression::Relational { argument, .. } => any(&[argument]),
            Expression::Math { arg, arg1, arg2, arg3, .. } => {
                any(&[arg]) || [arg1, arg2, arg3].into_iter().flatten().any(|a| self.diverges(a))
            }
            Expression::CallResult(_) => self.calls.contains(&expression),
            _ => true,
        }
    }
}

fn join(a: Leaves, b: Leaves) -> Leaves {
    Leaves { function: a.function || b.function, turn: a.turn || b.turn }
}
