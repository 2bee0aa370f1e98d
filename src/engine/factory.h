// Engine::create with the agent's maker as an argument, so that tests can hand in a fake one.
#pragma once

#include <functional>
#include <memory>

#include "engine/engine.h"

namespace baton::engine {

using AgentFactory =
    std::function<Result<std::unique_ptr<Agent>>(const AgentOptions&, const Geometry&)>;

Result<std::unique_ptr<Engine>> make_engine(std::unique_ptr<model::Model> model,
                                            std::shared_ptr<const model::Tokenizer> tokenizer,
                                            const EngineOptions& options,
                                            const AgentFactory& make_agent);

}  // namespace baton::engine
