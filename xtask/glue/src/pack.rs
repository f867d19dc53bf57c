//! The compiled module rewritten so that it gzips smaller: functions that are equal once, functions that are alike side by
//! side, and numbers in the data as differences.
//!
//! It makes no instruction faster or slower and knows nothing of what the module is for. Invariant: what comes out does what
//! went in did, because only names of functions are changed, and memory holds the same bytes before anything reads it.

mod functions;
mod words;

use std::convert::Infallible;
use std::fmt;

use wasm_encoder::reencode::{Error, Reencode, utils};
use wasm_encoder::{CodeSection, DataSection, FunctionSection, Module, SectionId, StartSection, TypeSection};
use wasmparser::{
    CodeSectionReader, DataSectionReader, FunctionBody, FunctionSectionReader, Parser, Payload, TypeRef,
    TypeSectionReader,
};

use self::functions::Functions;
use self::words::Differences;

/// The same module, smaller when gzipped.
///
/// # Errors
/// It is no module, or one that starts by itself: memory has to be put right before anything runs.
pub fn pack(wasm: &[u8]) -> Result<Vec<u8>, String> {
    let told = |error: &dyn fmt::Display| {
        // What follows the first line are bytes.
        let sentence = error.to_string().lines().next().unwrap_or_default().to_owned();
        format!("the module cannot be packed: {sentence}")
    };
    let read = Contents::read(wasm).map_err(|error| told(&error))?;
    if read.starts {
        return Err(told(&"it has a start function of its own; do without what brings it"));
    }
    let functions = Functions::arranged(read.imports, &read.types, &read.bodies);
    let functions = functions.map_err(|error| told(&error))?;
    let mut packer = Packer { functions, read, num_types: 0, starts: false };
    let mut module = Module::new();
    packer.parse_core_module(&mut module, Parser::new(0), wasm).map_err(|error| told(&error))?;
    Ok(module.finish())
}

/// What of a module has to be known before the first of it is written.
#[derive(Default)]
struct Contents<'w> {
    /// Imported functions, which come first among all.
    imports: u32,
    /// The type of each function of its own.
    types: Vec<u32>,
    bodies: Vec<FunctionBody<'w>>,
    /// Each piece.
    data: Vec<Differences>,
    starts: bool,
}

impl<'w> Contents<'w> {
    fn read(wasm: &'w [u8]) -> wasmparser::Result<Self> {
        let mut read = Self::default();
        for payload in Parser::new(0).parse_all(wasm) {
            match payload? {
                Payload::ImportSection(section) => {
                    for import in section.into_imports() {
                        read.imports += u32::from(matches!(import?.ty, TypeRef::Func(_)));
                    }
                }
                Payload::FunctionSection(section) => {
                    read.types = section.into_iter().collect::<Result<_, _>>()?;
                }
                Payload::CodeSectionEntry(body) => read.bodies.push(body),
                Payload::DataSection(section) => {
                    for piece in section {
                        let piece = piece?;
                        read.data.push(Differences::of(words::place(&piece)?, piece.data));
                    }
                }
                Payload::StartSection { .. } => read.starts = true,
                _ => {}
            }
        }
        Ok(read)
    }
}

/// Writes a module as it reads it, but for functions and data.
struct Packer<'w> {
    functions: Functions,
    read: Contents<'w>,
    /// Of the module as it was; those of the two functions that are added come behind them.
    num_types: u32,
    /// Whether it has been said that the second of these starts the module.
    starts: bool,
}

impl Packer<'_> {
    /// The number of the first function that is added.
    fn restorer(&self) -> u32 {
        self.read.imports + self.functions.order.len() as u32
    }
}

impl Reencode for Packer<'_> {
    type Error = Infallible;

    fn function_index(&mut self, number: u32) -> Result<u32, Error<Infallible>> {
        Ok(self.functions.numbers[number as usize])
    }

    fn parse_type_section(
        &mut self,
        types: &mut TypeSection,
        section: TypeSectionReader<'_>,
    ) -> Result<(), Error<Infallible>> {
        utils::parse_type_section(self, types, section)?;
        self.num_types = types.len();
        types.ty().function(words::RESTORER_TAKES, []);
        types.ty().function([], []);
        Ok(())
    }

    fn parse_function_section(
        &mut self,
        functions: &mut FunctionSection,
        _: FunctionSectionReader<'_>,
    ) -> Result<(), Error<Infallible>> {
        for idx in &self.functions.order {
            functions.function(self.read.types[*idx as usize]);
        }
        functions.function(self.num_types).function(self.num_types + 1);
        Ok(())
    }

    fn intersperse_section_hook(
        &mut self,
        module: &mut Module,
        _: Option<SectionId>,
        before: Option<SectionId>,
    ) -> Result<(), Error<Infallible>> {
        let is_place = matches!(before, Some(SectionId::Element | SectionId::DataCount | SectionId::Code));
        if is_place && !self.starts {
            self.starts = true;
            module.section(&StartSection { function_index: self.restorer() + 1 });
        }
        Ok(())
    }

    fn parse_code_section(
        &mut self,
        code: &mut CodeSection,
        _: CodeSectionReader<'_>,
    ) -> Result<(), Error<Infallible>> {
        for idx in &self.functions.order {
            code.raw(&functions::renumbered(&self.read.bodies[*idx as usize], &self.functions.numbers)?);
        }
        code.function(&words::restorer());
        code.function(&words::starter(&self.read.data, self.restorer()));
        Ok(())
    }

    fn parse_data_section(
        &mut self,
        data: &mut DataSection,
        section: DataSectionReader<'_>,
    ) -> Result<(), Error<Infallible>> {
        for (idx, piece) in section.into_iter().enumerate() {
            let mut piece = piece?;
            let bytes = std::mem::take(&mut self.read.data[idx].bytes);
            piece.data = &bytes;
            self.parse_data(data, piece)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use wasm_encoder::{ConstExpr, ExportKind, ExportSection, Function, MemorySection, MemoryType, ValType};
    use wasmparser::Validator;

    use super::*;

    /// A module of functions that give a number, in steps of a call: `(number, call)`.
    fn module(functions: &[(i32, Option<u32>)], data: &[u8]) -> Vec<u8> {
        let mut module = Module::new();
        let mut types = TypeSection::new();
        types.ty().function([], [ValType::I32]);
        let (mut section, mut exports, mut code) =
            (FunctionSection::new(), ExportSection::new(), CodeSection::new());
        for (idx, (number, call)) in (0..).zip(functions) {
            section.function(0);
            exports.export(&format!("f{idx}"), ExportKind::Func, idx);
            let mut function = Function::new([]);
            let mut instructions = function.instructions();
            if let Some(call) = call {
                instructions.call(*call).drop();
            }
            instructions.i32_const(*number).end();
            code.function(&function);
        }
        let mut memories = MemorySection::new();
        memories.memory(MemoryType {
            minimum: 1,
            maximum: None,
            memory64: false,
            shared: false,
            page_size_log2: None,
        });
        let mut pieces = DataSection::new();
        pieces.active(0, &ConstExpr::i32_const(64), data.iter().copied());
        module.section(&types).section(&section).section(&memories);
        module.section(&exports).section(&code).section(&pieces);
        module.finish()
    }

    #[test]
    fn functions_that_are_equal_are_one_and_those_that_then_become_equal_too() {
        let packed =
            pack(&module(&[(1, None), (7, Some(0)), (1, None), (7, Some(2)), (8, Some(2))], b"")).unwrap();
        Validator::new().validate_all(&packed).unwrap();
        let read = Contents::read(&packed).unwrap();
        assert_eq!(read.bodies.len(), 3 + 2, "1, 7 and 8, and what restores the data");
        let mut exports = Vec::new();
        for payload in Parser::new(0).parse_all(&packed) {
            if let Payload::ExportSection(section) = payload.unwrap() {
                exports = section.into_iter().map(|export| export.unwrap().index).collect();
            }
        }
        assert_eq!((exports[0], exports[1]), (exports[2], exports[3]));
        assert!(exports[0] != exports[1] && exports[1] != exports[4], "{exports:?}");
    }

    #[test]
    fn data_that_is_differences_is_restored_before_anything_runs() {
        let table: Vec<u8> = (0..1000_u32).flat_map(|n| (n * 40).to_le_bytes()).collect();
        let packed = pack(&module(&[(1, None)], &table)).unwrap();
        Validator::new().validate_all(&packed).unwrap();
        assert!(Contents::read(&packed).unwrap().starts);
        let holds = |part: &[u8]| packed.windows(part.len()).any(|bytes| bytes == part);
        assert!(holds(&table[..64]) && !holds(&table[table.len() - 64..]), "but for what comes first");
        let sentence = pack(&packed).unwrap_err();
        assert!(sentence.contains("a start function of its own"), "{sentence}");
    }

    #[test]
    fn what_is_no_module_is_told_in_a_sentence() {
        let sentence = pack(b"no module").unwrap_err();
        assert!(sentence.contains("cannot be packed") && !sentence.contains('\n'), "{sentence}");
    }
}
