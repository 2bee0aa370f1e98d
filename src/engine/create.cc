#include "engine/factory.h"

namespace baton::engine {

// In a file of its own: whoever links make_engine() alone does not need the agent's room.
Result<std::unique_ptr<Engine>> Engine::create(std::unique_ptr<model::Model> model,
                                               std::shared_ptr<const model::Tokenizer> tokenizer,
                                               const EngineOptions& options) {
  return make_engine(std::move(model), std::move(tokenizer), options, &Agent::create);
}

}  // namespace baton::engine
